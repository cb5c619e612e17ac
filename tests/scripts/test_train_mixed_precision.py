"""train_mixed_precision.py: the types it reports are the types that were asked for, and fp16 recovers."""

from __future__ import annotations

import pytest

SCRIPT = "train_mixed_precision.py"
EXACT = ["--dtype", "fp32"]


def types_seen(run) -> dict[str, str]:
    lines = run.outputs[0].partition("types seen in this step:\n")[2].splitlines()
    rows = [line.strip().rsplit(maxsplit=1) for line in lines if line.startswith("  ")]
    return dict(rows)


def test_ten_steps_in_fp32_equal_those_of_one_process(server, arguments, plain, tmp_path):
    settings = ["--steps", 10, "--micro-batch", 2, "--save-every", 0, "--export", "none", "--drift-steps", 2]
    run = server.train(SCRIPT, tmp_path, *arguments, *EXACT, *settings)
    assert run.codes == [0, 0], run.outputs
    assert run.trajectory == [pytest.approx(line, rel=1e-4) for line in plain("model")]
    drifts = [(line.get("loss_drift"), line.get("grad_norm_drift")) for line in run.metrics]
    assert drifts == [(0.0, 0.0)] * 2 + [(None, None)] * 8


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (
            ["--dtype", "bf16", "--keep-fp32", "both"],
            {
                "Linear q_proj: parameter in compute": "torch.bfloat16",
                "Linear q_proj: output": "torch.bfloat16",
                "FSDPLlamaRMSNorm input_layernorm: parameter in compute": "torch.float32",
                "FSDPLlamaRMSNorm input_layernorm: output": "torch.bfloat16",
                "FSDPLlamaRMSNorm norm: parameter in compute": "torch.float32",
                "FSDPLinear lm_head: parameter in compute": "torch.float32",
                "FSDPLinear lm_head: output": "torch.float32",
                "gradients: reduction": "torch.float32",
                "gradients: stored": "torch.float32",
                "parameters: stored": "torch.float32",
                "buffer inv_freq": "torch.float32",
            },
        ),
        (
            ["--dtype", "bf16", "--reduce-dtype", "bf16", "--buffer-dtype", "bf16"],
            {
                "LlamaRMSNorm input_layernorm: parameter in compute": "torch.bfloat16",
                "gradients: reduction": "torch.bfloat16",
                "gradients: stored": "torch.float32",
                "buffer inv_freq": "torch.bfloat16",
            },
        ),
        (
            ["--dtype", "bf16", "--autocast"],
            {
                "Linear q_proj: parameter in compute": "torch.float32",
                "Linear q_proj: output": "torch.bfloat16",
                "gradients: reduction": "torch.float32",
            },
        ),
        (
            ["--dtype", "fp16"],
            {"Linear q_proj: parameter in compute": "torch.float16", "gradients: reduction": "torch.float32"},
        ),
    ],
)
def test_the_types_are_those_of_the_policy_and_the_drift_is_small(server, arguments, tmp_path, more, expected):
    settings = ["--steps", 3, "--save-every", 0, "--export", "none", "--drift-steps", 3]
    run = server.train(SCRIPT, tmp_path, *arguments, *more, *settings)
    assert run.codes == [0, 0], run.outputs
    seen = types_seen(run)
    assert {what: seen.get(what) for what in expected} == expected
    for line in run.metrics:
        assert 0 < abs(line["loss_drift"]) < 0.01
        assert abs(line["grad_norm_drift"]) < 0.05


@pytest.fixture(scope="module")
def scaled(server, arguments, tmp_path_factory):
    """fp16 with a first loss scale that overflows, saved while it recovers."""
    folder = tmp_path_factory.mktemp("scaled")
    faults = {"probe": {"path": str(folder / "probe")}}
    settings = ["--dtype", "fp16", "--loss-scale", 2.0**30, "--micro-batch", 4, "--steps", 30, "--save-every", 20]
    run = server.train(SCRIPT, folder, *arguments, *settings, faults=faults)
    assert run.codes == [0, 0], run.outputs
    return run


def test_fp16_skips_steps_that_overflow_until_the_scale_fits(scaled):
    skipped = [line for line in scaled.metrics if line.get("skipped")]
    assert 8 < len(skipped) < 20
    assert [line["step"] for line in skipped][:8] == list(range(1, 9))
    scale = 2.0**30
    for line in scaled.metrics:
        scale = scale / 2 if line.get("skipped") else scale
        assert line["loss_scale"] == scale
    assert scaled.metrics[-1]["loss"] < scaled.metrics[0]["loss"] - 0.5


def test_the_loss_scale_is_part_of_the_checkpoint(server, arguments, scaled, tmp_path):
    at_twenty = scaled.folder / "checkpoints" / "step-00000020"
    settings = ["--dtype", "fp16", "--loss-scale", 2.0**30, "--micro-batch", 4, "--steps", 30, "--save-every", 0]
    run = server.train(SCRIPT, tmp_path, *arguments, *settings, "--export", "none", "--resume", at_twenty)
    assert run.codes == [0, 0], run.outputs
    assert run.trajectory == scaled.trajectory[20:]
    assert run.metrics[0]["loss_scale"] == scaled.metrics[20]["loss_scale"]


def test_a_loss_that_is_not_finite_stops_fp16_too(server, arguments, tmp_path):
    faults = {"nan_loss": {"step": 2, "on_rank": 1}}
    run = server.train(SCRIPT, tmp_path, *arguments, "--dtype", "fp16", "--steps", 3, faults=faults)
    assert run.codes == [1, 1]
    assert "step 2 is not finite: loss of ranks [1], gradient norm" in run.outputs[0]


def test_a_tied_head_cannot_keep_a_type_of_its_own(server, arguments, inputs, tmp_path):
    run = server.train(SCRIPT, tmp_path, *arguments, "--model", inputs / "tied", "--keep-fp32", "head")
    assert run.codes == [2, 2]
    assert "--keep-fp32 head: the head is tied to the embedding; give norms\n" in run.outputs[0]

"""train_fsdp2.py on CPU processes with gloo, against a plain loop in one process and against itself undisturbed."""

from __future__ import annotations

import pytest

SCRIPT = "train_fsdp2.py"
COMMON = ["--dtype", "fp32", "--seq-len", 32, "--lr", 3e-3, "--warmup", 3, "--batch-size", 8, "--micro-batch", 1]


@pytest.fixture(scope="session")
def arguments(inputs):
    return ["--model", inputs / "model", "--data", inputs / "text.txt", *COMMON]


@pytest.fixture(scope="module")
def plain(server, inputs, tmp_path_factory):
    """Loss and gradient norm of ten steps by a plain loop, for a model's name."""
    found = {}

    def run(name):
        if name not in found:
            settings = {"steps": 10, "batch_size": 8, "seq_len": 32, "lr": 3e-3, "warmup": 3}
            folder = tmp_path_factory.mktemp("plain")
            found[name] = server.task("train_plainly", folder, inputs / name, inputs / "text.txt", **settings)
        return [(line["step"], line["loss"], line["grad_norm"]) for line in found[name]]

    return run


@pytest.mark.parametrize(
    ("ranks", "model", "more"),
    [
        (2, "model", []),
        (4, "model", []),
        (4, "model", ["--replicas", 2]),
        (4, "model", ["--replicas", 2, "--accumulate", "sharded"]),
        (2, "model", ["--micro-batch", 4]),
        (2, "model", ["--recompute", "full"]),
        (2, "model", ["--recompute", "selective"]),
        (4, "model", ["--reshard", 2, "--prefetch", 1]),
        (2, "model", ["--reshard", "false"]),
        (2, "tied", []),
        (2, "model", ["--compile", "--micro-batch", 4]),
    ],
)
def test_ten_steps_equal_those_of_one_process(server, inputs, arguments, plain, tmp_path, ranks, model, more):
    run = server.train(
        SCRIPT, tmp_path, *arguments, "--model", inputs / model, "--steps", 10, *more,
        "--save-every", 0, "--export", "none", ranks=ranks,
    )  # fmt: skip
    assert run.codes == [0] * ranks, run.outputs
    for mine, wanted in zip(run.trajectory, plain(model), strict=True):
        assert mine == pytest.approx(wanted, rel=1e-4)

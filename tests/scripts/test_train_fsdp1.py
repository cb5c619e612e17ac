"""train_fsdp1.py: equal to a plain loop in one process, its checkpoints, and the way to FSDP2."""

from __future__ import annotations

import pytest
from conftest import COMMON

SCRIPT = "train_fsdp1.py"
FSDP2 = "train_fsdp2.py"


@pytest.mark.parametrize(
    ("ranks", "model", "more"),
    [
        (2, "model", ["--recompute", "full"]),
        (2, "tied", ["--micro-batch", 4, "--strategy", "grad"]),
        (4, "model", ["--strategy", "hybrid", "--replicas", 2, "--forward-prefetch"]),
        (2, "model", ["--accumulate", "sharded"]),
    ],
)
def test_ten_steps_equal_those_of_one_process(server, arguments, inputs, plain, tmp_path, *, ranks, model, more):
    run = server.train(
        SCRIPT, tmp_path, *arguments, "--model", inputs / model, "--steps", 10, *more,
        "--save-every", 0, "--export", "none", ranks=ranks,
    )  # fmt: skip
    assert run.codes == [0] * ranks, run.outputs
    for mine, wanted in zip(run.trajectory, plain(model), strict=True):
        assert mine == pytest.approx(wanted, rel=1e-4)


@pytest.fixture(scope="module")
def undisturbed(server, arguments, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    faults = {"probe": {"path": str(folder / "probe")}}
    run = server.train(SCRIPT, folder, *arguments, "--steps", 10, "--save-every", 5, faults=faults)
    assert run.codes == [0, 0], run.outputs
    return run


def test_each_rank_holds_its_share_and_reduces_once_a_step(undisturbed):
    total = sum(undisturbed.probe(rank)["total_elements"] for rank in (0, 1)) * 4  # of a flat parameter's shards
    units = 2 + 1  # blocks and root
    for kind, times in (("parameter", 1), ("gradient", 1), ("optimizer", 2)):
        held = [undisturbed.probe(rank)[f"{kind}_bytes"] for rank in (0, 1)]
        assert sum(held) == pytest.approx(total * times, rel=0.01), kind
        assert max(held) == pytest.approx(total * times / 2, rel=0.01), kind
    assert undisturbed.probe(0)["reduced"] == [units] * 10


def test_the_export_gives_the_same_logits_and_rotary_tables(undisturbed, server, tmp_path):
    exported = undisturbed.folder / "checkpoints" / "export"
    error = server.task("reload_error", tmp_path, exported, undisturbed.folder / "probe")
    assert error["logits"] < 1e-5
    assert error["rotary"] == 0


def test_stopped_by_a_signal_and_resumed_bit_for_bit(server, arguments, undisturbed, tmp_path):
    stop = {"signal_at_step": {"number": "SIGTERM", "step": 4, "on_rank": 1}}
    first = server.train(SCRIPT, tmp_path, *arguments, "--steps", 10, faults=stop)
    assert first.codes == [0, 0], first.outputs
    second = server.train(SCRIPT, tmp_path, *arguments, "--steps", 10, "--export", "none")
    assert second.codes == [0, 0], second.outputs
    assert second.trajectory == undisturbed.trajectory


@pytest.mark.parametrize(
    ("script", "ranks", "more"),
    [(SCRIPT, 4, ["--strategy", "hybrid", "--replicas", 2]), (SCRIPT, 1, []), (FSDP2, 2, [])],
)
def test_resuming_on_other_ranks_and_with_fsdp2(server, arguments, undisturbed, tmp_path, *, script, ranks, more):
    half = undisturbed.folder / "checkpoints" / "step-00000005"
    run = server.train(
        script, tmp_path, *arguments, "--steps", 10, "--resume", half, *more, "--export", "none", ranks=ranks
    )
    assert run.codes == [0] * ranks, run.outputs
    assert run.trajectory == [pytest.approx(line, rel=1e-4) for line in undisturbed.trajectory[5:]]


def test_random_weights_depend_on_the_seed_and_not_on_the_ranks(server, inputs, tmp_path):
    arguments = [
        "--model",
        inputs / "tied",
        "--from-scratch",
        "--data",
        inputs / "text.txt",
        *COMMON,
        "--steps",
        2,
    ]
    runs = [
        server.train(SCRIPT, tmp_path / str(ranks), *arguments, "--save-every", 0, "--export", "none", ranks=ranks)
        for ranks in (1, 2)
    ]
    assert [run.codes for run in runs] == [[0], [0, 0]], runs
    assert runs[1].trajectory == [pytest.approx(line, rel=1e-4) for line in runs[0].trajectory]


def test_frozen_parameters_stay(server, inputs, arguments, tmp_path):
    run = server.train(SCRIPT, tmp_path, *arguments, "--steps", 3, "--freeze", "*,!*.q_proj.weight")
    assert run.codes == [0, 0], run.outputs
    changed = server.task("compare_states", tmp_path, inputs / "model", tmp_path / "checkpoints" / "export")
    assert changed == [f"model.layers.{i}.self_attn.q_proj.weight" for i in (0, 1)]


def test_a_module_that_the_initialiser_forgets_is_found(server, tmp_path):
    run = server.train(SCRIPT, tmp_path, faults={"uninitialised_norm": {}})
    assert run.codes == [1, 1]
    assert "tensors are NaN or were never filled, first _fsdp_wrapped_module." in run.outputs[0]


def test_replicas_without_a_hybrid_strategy(server, tmp_path):
    run = server.train(SCRIPT, tmp_path, "--replicas", 2)
    assert run.codes == [2, 2]
    assert run.outputs[0].startswith("train_fsdp1.py: --replicas is for --strategy hybrid, not full;")

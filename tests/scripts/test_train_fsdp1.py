"""train_fsdp1.py: equal to a plain loop in one process, its checkpoints, and the way to FSDP2."""

from __future__ import annotations

import pytest

SCRIPT = "train_fsdp1.py"
FSDP2 = "train_fsdp2.py"
NO_FILES = ["--save-every", 0, "--export", "none"]


@pytest.fixture(scope="module")
def undisturbed(server, arguments, tmp_path_factory):
    """Ten steps on two ranks, four micro-batches each, saved every five, looked at closely."""
    folder = tmp_path_factory.mktemp("undisturbed")
    faults = {"probe": {"path": str(folder / "probe")}}
    run = server.train(SCRIPT, folder, *arguments, "--steps", 10, "--save-every", 5, faults=faults)
    assert run.codes == [0, 0], run.outputs
    return run


def test_ten_steps_equal_those_of_one_process(undisturbed, plain):
    assert undisturbed.trajectory == [pytest.approx(line, rel=1e-4) for line in plain("model")]


@pytest.mark.parametrize(
    ("ranks", "model", "more"),
    [
        (2, "tied", ["--micro-batch", 4, "--strategy", "grad", "--recompute", "full"]),
        (4, "model", ["--strategy", "hybrid", "--replicas", 2, "--forward-prefetch"]),
    ],
)
def test_ten_steps_are_the_same_in_other_ways(server, arguments, inputs, plain, tmp_path, *, ranks, model, more):
    settings = [*arguments, "--model", inputs / model, "--steps", 10, *more, *NO_FILES]
    run = server.train(SCRIPT, tmp_path, *settings, ranks=ranks)
    assert run.codes == [0] * ranks, run.outputs
    assert run.trajectory == [pytest.approx(line, rel=1e-4) for line in plain(model)]


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
    [(SCRIPT, 4, ["--strategy", "hybrid", "--replicas", 2]), (FSDP2, 2, [])],
)
def test_resuming_on_other_ranks_and_with_fsdp2(server, arguments, undisturbed, tmp_path, *, script, ranks, more):
    half = undisturbed.folder / "checkpoints" / "step-00000005"
    settings = [*arguments, "--steps", 10, "--resume", half, *more, *NO_FILES]
    run = server.train(script, tmp_path, *settings, ranks=ranks)
    assert run.codes == [0] * ranks, run.outputs
    assert run.trajectory == [pytest.approx(line, rel=1e-4) for line in undisturbed.trajectory[5:]]


def test_weights_that_are_never_filled_are_found(server, tmp_path):
    run = server.train(SCRIPT, tmp_path, faults={"forgotten_weights": {}})
    assert run.codes == [1, 1]
    assert "train_fsdp1.py: NaN in the weights, or never filled, by rank: [['_fsdp_wrapped" in run.outputs[0]


def test_replicas_that_do_not_divide_the_ranks(server, tmp_path):
    run = server.train(SCRIPT, tmp_path, "--strategy", "hybrid", "--replicas", 3)
    assert run.codes == [2, 2]
    assert "train_fsdp1.py: --replicas 3 does not divide 2 ranks; give a divisor\n" in run.outputs[0]

"""train_cpu_offload.py: the same training with the state on the host, and what it reports."""

from __future__ import annotations

import re

import pytest

SCRIPT = "train_cpu_offload.py"


@pytest.fixture(scope="module")
def undisturbed(server, arguments, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    settings = ["--micro-batch", 2, "--recompute", "full", "--offload-activations", "--compare-steps", 3]
    faults = {"probe": {"path": str(folder / "probe")}}
    run = server.train(SCRIPT, folder, *arguments, "--steps", 10, *settings, "--save-every", 5, faults=faults)
    assert run.codes == [0, 0], run.outputs
    return run


def test_ten_steps_equal_those_of_one_process(undisturbed, plain):
    assert undisturbed.trajectory == [pytest.approx(line, rel=1e-4) for line in plain("model")]


def test_memory_and_time_are_reported_with_and_without_offload(undisturbed):
    for moment in ("without offload, after 3 steps", "before the first step", "after the last step"):
        line = rf"{moment}: GPU 0\.000 GiB \(peak 0\.000\), host 0\.\d{{3}} GiB \(peak 0\.\d{{3}}\)\n"
        assert re.search(line, undisturbed.outputs[0])
    cost = r"a step takes \d+\.\d{3} s, [+-]\d+% against \d+\.\d{3} s without offload\n"
    assert re.search(cost, undisturbed.outputs[0])


def test_gradients_are_reduced_once_a_step_and_shards_are_equal(undisturbed):
    units = 2 + 1  # blocks and root
    assert undisturbed.probe(0)["reduced"] == [units] * (3 + 10)  # of both runs
    total = undisturbed.probe(0)["total_elements"] * 4
    assert [undisturbed.probe(rank)["optimizer_bytes"] for rank in (0, 1)] == [total, total]


def test_stopped_by_a_signal_and_resumed_bit_for_bit(server, arguments, undisturbed, tmp_path):
    settings = ["--steps", 10, "--micro-batch", 2]
    stop = {"signal_at_step": {"number": "SIGUSR1", "step": 4, "on_rank": 1}}
    first = server.train(SCRIPT, tmp_path, *arguments, *settings, faults=stop)
    assert first.codes == [0, 0], first.outputs
    second = server.train(SCRIPT, tmp_path, *arguments, *settings)
    assert second.codes == [0, 0], second.outputs
    assert second.trajectory == undisturbed.trajectory
    exports = (run.folder / "checkpoints" / "export" for run in (second, undisturbed))
    assert server.task("compare_states", tmp_path, *exports) == []


def test_the_export_gives_the_same_logits(undisturbed, server, tmp_path):
    exported = undisturbed.folder / "checkpoints" / "export"
    error = server.task("reload_error", tmp_path, exported, undisturbed.folder / "probe")
    assert error["logits"] < 1e-5
    assert error["rotary"] == 0


def test_fsdp1_says_that_it_needs_an_accelerator(server, tmp_path):
    assert server.task("fsdp1_offload_message", tmp_path) == "FSDP1's CPUOffload needs an accelerator; there is none"

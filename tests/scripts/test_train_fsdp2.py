"""train_fsdp2.py on CPU processes with gloo, against a plain loop and against itself undisturbed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from array import array

import pytest

from tests.scripts.conftest import COMMON, ENVIRONMENT, SCRIPTS, finish, free_port, torchrun

SCRIPT = "train_fsdp2.py"
NO_FILES = ["--save-every", 0, "--export", "none"]


@pytest.fixture(scope="module")
def undisturbed(server, arguments, tmp_path_factory):
    """Ten steps on two ranks, four micro-batches each, saved every three, looked at closely."""
    folder = tmp_path_factory.mktemp("undisturbed")
    faults = {"probe": {"path": str(folder / "probe")}}
    run = server.train(SCRIPT, folder, *arguments, "--steps", 10, "--save-every", 3, faults=faults)
    assert run.codes == [0, 0], run.outputs
    return run


def test_ten_steps_equal_those_of_one_process(undisturbed, plain):
    assert undisturbed.trajectory == [pytest.approx(line, rel=1e-4) for line in plain("model")]


@pytest.mark.parametrize(
    ("ranks", "model", "more"),
    [
        (4, "model", ["--replicas", 2, "--recompute", "selective"]),
        (4, "model", ["--reshard", 2, "--prefetch", 1]),
        (2, "tied", ["--micro-batch", 4, "--recompute", "full"]),
        (2, "model", ["--micro-batch", 4, "--compile", "--reshard", "false"]),
    ],
)
def test_ten_steps_are_the_same_in_other_ways(server, inputs, arguments, plain, tmp_path, *, ranks, model, more):
    settings = [*arguments, "--model", inputs / model, "--steps", 10, *more, *NO_FILES]
    run = server.train(SCRIPT, tmp_path, *settings, ranks=ranks)
    assert run.codes == [0] * ranks, run.outputs
    assert run.trajectory == [pytest.approx(line, rel=1e-4) for line in plain(model)]


def test_each_rank_holds_its_share(undisturbed):
    total = undisturbed.probe(0)["total_elements"] * 4
    for kind, times in (("parameter", 1), ("gradient", 1), ("optimizer", 2)):
        held = [undisturbed.probe(rank)[f"{kind}_bytes"] for rank in (0, 1)]
        assert sum(held) == total * times  # every size here divides by two: no padding
        assert max(held) == total * times // 2, kind


def test_gradients_are_reduced_once_a_step_however_many_micro_batches(undisturbed):
    units = 2 + 2 + 1  # blocks, embedding and head, root
    assert undisturbed.probe(0)["reduced"] == [units] * 10
    assert min(undisturbed.probe(0)["gathered"]) >= 4 * units


def test_the_last_checkpoints_are_kept_and_all_are_whole(undisturbed, server, tmp_path):
    assert undisturbed.checkpoints == ["step-00000009", "step-00000010"]
    newest = undisturbed.folder / "checkpoints" / "step-00000010"
    entries = server.task("checkpoint_entries", tmp_path, newest)
    assert {"run.step", "run.position", "run.about"} <= set(entries)
    assert {"model.lm_head.weight", "optimizer.state.lm_head.weight.exp_avg_sq"} <= set(entries)


def test_training_goes_on_while_a_checkpoint_is_written(server, arguments, undisturbed, tmp_path):
    """The writing of step 3 waits for step 5; what it writes is the state of step 3."""
    settings = [*arguments, "--steps", 10, "--save-every", 3, "--keep", 9]
    run = server.train(SCRIPT, tmp_path, *settings, faults={"write_late": {"until_step": 5}})
    assert run.codes == [0, 0], run.outputs
    settings += ["--resume", tmp_path / "checkpoints" / "step-00000003", "--checkpoint-dir", "again", *NO_FILES]
    again = server.train(SCRIPT, tmp_path, *settings)
    assert again.trajectory == undisturbed.trajectory


def test_the_export_gives_the_same_logits_and_rotary_tables(undisturbed, server, tmp_path):
    exported = undisturbed.folder / "checkpoints" / "export"
    error = server.task("reload_error", tmp_path, exported, undisturbed.folder / "probe")
    assert error["logits"] < 1e-5
    assert error["rotary"] == 0
    assert error["tables"] >= 1


def test_a_signal_to_one_rank_stops_all_and_the_next_run_goes_on_bit_for_bit(server, arguments, undisturbed, tmp_path):
    stop = {"signal_at_step": {"number": "SIGTERM", "step": 5, "on_rank": 1}}
    first = server.train(SCRIPT, tmp_path, *arguments, "--steps", 10, "--save-every", 3, faults=stop)
    assert first.codes == [0, 0], first.outputs
    assert "stopped by a signal after step 6; last checkpoint: checkpoints/step-00000006\n" in first.outputs[0]
    assert not (tmp_path / "checkpoints" / "export").exists()
    second = server.train(SCRIPT, tmp_path, *arguments, "--steps", 10, "--save-every", 3)
    assert second.codes == [0, 0], second.outputs
    assert second.trajectory == undisturbed.trajectory
    exports = (run.folder / "checkpoints" / "export" for run in (second, undisturbed))
    assert server.task("compare_states", tmp_path, *exports) == []


@pytest.mark.parametrize(("ranks", "more"), [(4, ["--replicas", 2]), (1, [])])
def test_resuming_on_another_number_of_ranks(server, arguments, undisturbed, tmp_path, *, ranks, more):
    half = undisturbed.folder / "checkpoints" / "step-00000009"
    settings = [*arguments, "--steps", 10, "--resume", half, *more, *NO_FILES]
    run = server.train(SCRIPT, tmp_path, *settings, ranks=ranks)
    assert run.codes == [0] * ranks, run.outputs
    assert run.trajectory == [pytest.approx(undisturbed.trajectory[-1], rel=1e-4)]


def test_dropout_is_drawn_as_without_the_stop(server, inputs, tmp_path):
    """GPT-2 with dropout: random numbers follow from seed, step and rank."""
    arguments = ["--model", inputs / "gpt2", "--data", inputs / "text.txt", *COMMON, "--steps", 6, "--save-every", 3]
    whole = server.train(SCRIPT, tmp_path / "whole", *arguments)
    assert whole.codes == [0, 0], whole.outputs
    at_three = tmp_path / "whole" / "checkpoints" / "step-00000003"
    rest = server.train(SCRIPT, tmp_path / "rest", *arguments, "--resume", at_three)
    assert rest.codes == [0, 0], rest.outputs
    assert rest.trajectory == whole.trajectory[3:]


def test_frozen_parameters_stay_and_have_no_optimizer_state(server, inputs, arguments, tmp_path):
    settings = [*arguments, "--freeze", "*,!*.q_proj.weight", "--save-every", 2]
    run = server.train(SCRIPT, tmp_path, *settings, "--steps", 4)
    assert run.codes == [0, 0], run.outputs
    changed = server.task("compare_states", tmp_path, inputs / "model", tmp_path / "checkpoints" / "export")
    assert changed == [f"model.layers.{i}.self_attn.q_proj.weight" for i in (0, 1)]
    entries = server.task("checkpoint_entries", tmp_path, tmp_path / "checkpoints" / "step-00000004")
    moments = {name for name in entries if name.endswith(".exp_avg")}
    assert moments == {f"optimizer.state.{name}.exp_avg" for name in changed}
    again = server.train(SCRIPT, tmp_path, *settings, "--steps", 5, "--export", "none")
    assert again.codes == [0, 0], again.outputs


def test_random_weights_depend_on_the_seed_and_not_on_the_ranks(server, inputs, tmp_path):
    settings = ["--model", inputs / "model", "--from-scratch", "--data", inputs / "text.txt", *COMMON, "--steps", 2]
    one, two, other = (
        server.train(SCRIPT, tmp_path / f"{ranks} {seed}", *settings, "--seed", seed, *NO_FILES, ranks=ranks)
        for ranks, seed in ((1, 0), (2, 0), (1, 1))
    )
    assert [run.codes for run in (one, two, other)] == [[0], [0, 0], [0]]
    assert two.trajectory == [pytest.approx(line, rel=1e-4) for line in one.trajectory]
    assert other.trajectory[0] != pytest.approx(one.trajectory[0], rel=1e-4)


def test_weights_that_are_never_filled_are_found(server, tmp_path):
    run = server.train(SCRIPT, tmp_path, faults={"forgotten_weights": {}})
    assert run.codes == [1, 1]
    said = "train_fsdp2.py: NaN in the weights, or never filled, by rank: [['model.layers.0.input_layernorm.weight', "
    assert said in run.outputs[0]


def test_json_lines_are_read_with_the_models_tokenizer(server, inputs, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(inputs / "model", folder)
    server.task("make_tokenizer", tmp_path, folder)
    documents = ["one two three .", "two", "", "seven one"]
    lines = [json.dumps({"text": text, "id": i}) + "\n" for i, text in enumerate(documents)]
    (tmp_path / "text.jsonl").write_text("".join(lines))
    settings = ["--model", folder, "--data", tmp_path / "text.jsonl", "--seq-len", 4, "--steps", 2]
    run = server.train(SCRIPT, tmp_path, *settings, *NO_FILES)
    assert run.codes == [0, 0], run.outputs
    (tokens,) = (tmp_path / "checkpoints").glob("*.int32")
    numbers = array("i", tokens.read_bytes())
    assert list(numbers) == [2, 3, 4, 5, 1, 3, 1, 1, 0, 2, 1]  # 1 ends a document, 0 is an unknown word


def test_a_fine_tune_lowers_the_held_out_loss(server, inputs, tmp_path):
    lines = [f"{a} plus {b} makes {a + b}.\n" for a in range(20) for b in range(20)]
    held_out = "".join(lines[::7])
    (tmp_path / "text.txt").write_text("".join(line for i, line in enumerate(lines) if i % 7))
    run = server.train(
        SCRIPT, tmp_path, "--model", inputs / "model", "--data", tmp_path / "text.txt", "--seq-len", 64,
        "--batch-size", 16, "--micro-batch", 8, "--steps", 150, "--lr", 1e-2, "--warmup", 10, "--save-every", 0,
    )  # fmt: skip
    assert run.codes == [0, 0], run.outputs
    before = server.task("loss_on", tmp_path, inputs / "model", text=held_out)
    after = server.task("loss_on", tmp_path, tmp_path / "checkpoints" / "export", text=held_out)
    assert before > 5.5
    assert after < 1.0


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "faults",
    [
        {"signal_at_step": {"number": "SIGKILL", "step": 8, "on_rank": 1}},
        {"kill_in_save": {"save": 2, "on_rank": 1}},
    ],
    ids=["in a step", "in a save"],
)
def test_kill_9_of_one_rank_and_torchrun_goes_on_to_the_same_end(arguments, undisturbed, tmp_path, faults):
    settings = [*arguments, "--steps", 10, "--save-every", 3]
    run = finish(torchrun(tmp_path, SCRIPT, *settings, restarts=1, faults=faults), tmp_path)
    assert run.codes == [0], run.outputs
    resumed = re.findall(r"resuming from checkpoints/step-0000000(\d): ", run.outputs[0])
    assert resumed == ["3"] or (resumed == ["6"] and "signal_at_step" in faults)  # of step 6 all or nothing was written
    assert run.trajectory == undisturbed.trajectory
    assert run.checkpoints == undisturbed.checkpoints


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", [0, 1])
def test_two_nodes_start_in_either_order(arguments, undisturbed, tmp_path, first):
    """Two torchrun agents with one worker each; the node with the rendezvous may come last."""
    port = free_port()
    agents = {}
    for node in (first, 1 - first):
        launch = ["--nnodes=2", f"--node-rank={node}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}"]
        launch += ["--rdzv-id=two-nodes", f"--rdzv-conf=is_host={int(node == 0)},read_timeout=300"]
        settings = [*arguments, "--steps", 10, *NO_FILES]
        agents[node] = torchrun(tmp_path, SCRIPT, *settings, ranks=1, launch=launch)
        time.sleep(3)
    runs = [finish(agents[node], tmp_path, number) for number, node in enumerate((first, 1 - first))]
    assert [run.codes for run in runs] == [[0], [0]], runs
    assert runs[0].trajectory == undisturbed.trajectory


def test_started_without_torchrun(tmp_path):
    command = [sys.executable, SCRIPTS / SCRIPT]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "train_fsdp2.py: start it by `torchrun --nproc-per-node 2 train_fsdp2.py`\n"


def test_more_ranks_than_gpus(server, tmp_path):
    run = server.train(SCRIPT, tmp_path, faults={"pretend_gpus": {"count": 1}})
    assert run.codes == [2, 2]
    said = "train_fsdp2.py: 2 ranks on a node with 1 GPUs; give torchrun --nproc-per-node 1\n"
    assert run.outputs == [said, ""]


@pytest.mark.parametrize(
    ("code", "more", "message"),
    [
        (2, ["--batch-size", 6], "--batch-size 6: give a multiple of 4, --micro-batch x ranks\n"),
        (2, ["--replicas", 3], "--replicas 3 does not divide 2 ranks; give a divisor"),
        (2, ["--reshard", 3], "--reshard 3 on 2 ranks; give true, false or one of []"),
        (2, ["--block-class", "GPT2Block"], "no block of class ['GPT2Block']; try --block-class with one of ['Llama"),
        (2, ["--freeze", "*.bias"], "--freeze *.bias: no parameter has such a name; one is model.embed"),
        (1, ["--resume", "nowhere"], "--resume nowhere: ValueError: no whole checkpoint"),
        (1, ["--model", "nowhere"], "--model nowhere: FileNotFoundError: "),
        (1, ["--model", "in/weightless"], "--model in/weightless: OSError: "),
        (1, ["--data", "nowhere.txt"], "--data nowhere.txt: FileNotFoundError: "),
        (1, ["--data", "in/empty.txt"], "--data in/empty.txt: ValueError: no text"),
        (1, ["--data", "in/bad.jsonl"], "--data in/bad.jsonl: KeyError: 'text'"),
        (1, ["--data", "in/latin1.txt"], "--data in/latin1.txt: UnicodeDecodeError: 'utf-8' codec can't decode byte"),
    ],
)  # fmt: skip
def test_what_a_person_can_mend_is_said_in_one_line_on_rank_0(server, inputs, tmp_path, *, code, more, message):
    (tmp_path / "in").symlink_to(inputs)
    run = server.train(SCRIPT, tmp_path, *more)
    assert run.codes == [code, code], run.outputs
    said = re.sub(r"no CUDA device: .*\n", "", run.outputs[0])
    assert said.startswith(f"train_fsdp2.py: {message}")
    assert said.count("\n") == 1
    assert run.outputs[1] == ""


@pytest.mark.parametrize("more", [["--model", "deep"], ["--freeze", "*norm*"], ["--seed", 1]])
def test_a_checkpoint_of_something_else_is_refused(server, inputs, arguments, undisturbed, tmp_path, *, more):
    more = [inputs / "deep" if word == "deep" else word for word in more]
    checkpoint = undisturbed.folder / "checkpoints" / "step-00000009"
    run = server.train(SCRIPT, tmp_path, *arguments, "--resume", checkpoint, *more)
    assert run.codes == [2, 2], run.outputs
    assert f"train_fsdp2.py: {checkpoint} is of a llama of 43,092 parameters (43,092 trained), " in run.outputs[0]


def test_resume_none_does_not_write_over_an_earlier_run(server, arguments, undisturbed, tmp_path):
    shutil.copytree(undisturbed.folder / "checkpoints", tmp_path / "checkpoints")
    run = server.train(SCRIPT, tmp_path, *arguments, "--resume", "none")
    assert run.codes == [1, 1]
    assert "checkpoints/step-00000010 is there; give another --checkpoint-dir\n" in run.outputs[0]


def test_a_half_written_checkpoint_is_not_taken_for_a_whole_one(server, arguments, undisturbed, tmp_path):
    shutil.copytree(undisturbed.folder / "checkpoints", tmp_path / "checkpoints")
    (tmp_path / "checkpoints" / "step-00000010" / ".metadata").unlink()
    run = server.train(SCRIPT, tmp_path, *arguments, "--steps", 10)
    assert run.codes == [0, 0], run.outputs
    assert "resuming from checkpoints/step-00000009: {'step': 9, 'position': 72}" in run.outputs[0]
    assert run.trajectory == undisturbed.trajectory[9:]
    assert run.checkpoints == ["step-00000009", "step-00000010"]


def test_a_loss_that_is_not_finite_stops_and_names_step_rank_and_checkpoint(server, arguments, tmp_path):
    faults = {"nan_loss": {"step": 4, "on_rank": 1}}
    run = server.train(SCRIPT, tmp_path, *arguments, "--steps", 5, "--save-every", 2, faults=faults)
    assert run.codes == [1, 1]
    said = run.outputs[0].splitlines()[-1]
    assert said.startswith("train_fsdp2.py: step 4 is not finite: loss of ranks [1], gradient norm ")
    assert "; last checkpoint: checkpoints/step-00000002; lower --lr or give --on-nonfinite skip" in said


def test_a_loss_that_is_not_finite_can_be_skipped(server, arguments, tmp_path):
    faults = {"nan_loss": {"step": 2, "on_rank": 1}}
    settings = [*arguments, "--steps", 3, "--on-nonfinite", "skip", *NO_FILES]
    run = server.train(SCRIPT, tmp_path, *settings, faults=faults)
    assert run.codes == [0, 0], run.outputs
    assert [line["loss"] is None for line in run.metrics] == [False, True, False]
    assert [line.get("skipped") for line in run.metrics] == [None, 1, None]


def test_a_checkpoint_that_cannot_be_written_ends_the_run_with_the_last_whole_one_named(server, arguments, tmp_path):
    """A limit on the size of files stands in for a full disk: writing fails in the middle of the file."""
    first = server.train(SCRIPT, tmp_path, *arguments, "--steps", 2, "--save-every", 2, "--export", "none")
    assert first.codes == [0, 0], first.outputs
    faults = {"small_files": {"limit": 100_000}}
    run = server.train(SCRIPT, tmp_path, *arguments, "--steps", 4, "--save-every", 1, faults=faults)
    assert run.codes == [1, 1], run.outputs
    said = run.outputs[0].splitlines()[-1]
    assert said.startswith("train_fsdp2.py: nothing saved: ")
    assert "; last checkpoint: checkpoints/step-00000002; " in said
    assert re.search(r"; make room in checkpoints: \d+ MiB free$", said)


def test_help_names_every_setting_in_one_screen():
    command, wide = [sys.executable, SCRIPTS / SCRIPT, "--help"], {**ENVIRONMENT, "COLUMNS": "110"}
    done = subprocess.run(command, capture_output=True, text=True, env=wide, check=False)
    assert done.returncode == 0
    assert done.stdout.count("\n") <= 60
    for option in (*COMMON[::2], "--model", "--freeze", "--resume", "--metrics", "--on-nonfinite", "--timeout"):
        assert f"\n  {option} " in done.stdout

"""train_fsdp2.py on CPU processes with gloo, against a plain loop and against itself undisturbed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from array import array

import pytest
from conftest import COMMON, ENVIRONMENT, SCRIPTS, finish, free_port, torchrun

SCRIPT = "train_fsdp2.py"


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
def test_ten_steps_equal_those_of_one_process(server, inputs, arguments, plain, tmp_path, *, ranks, model, more):
    run = server.train(
        SCRIPT, tmp_path, *arguments, "--model", inputs / model, "--steps", 10, *more,
        "--save-every", 0, "--export", "none", ranks=ranks,
    )  # fmt: skip
    assert run.codes == [0] * ranks, run.outputs
    for mine, wanted in zip(run.trajectory, plain(model), strict=True):
        assert mine == pytest.approx(wanted, rel=1e-4)


@pytest.fixture(scope="module")
def undisturbed(server, arguments, tmp_path_factory):
    """Ten steps on two ranks, saved every three, looked at closely."""
    folder = tmp_path_factory.mktemp("undisturbed")
    faults = {"probe": {"path": str(folder / "probe")}}
    run = server.train(
        SCRIPT, folder, *arguments, "--steps", 10, "--save-every", 3, "--keep", 2, ranks=2, faults=faults
    )
    assert run.codes == [0, 0], run.outputs
    return run


def test_each_rank_holds_its_share(undisturbed):
    total = undisturbed.probe(0)["total_elements"] * 4
    for kind, times in (("parameter", 1), ("gradient", 1), ("optimizer", 2)):
        held = [undisturbed.probe(rank)[f"{kind}_bytes"] for rank in (0, 1)]
        assert sum(held) == total * times  # every size here divides by two: no padding
        assert max(held) == total * times // 2, kind


def test_gradients_are_reduced_once_a_step_however_many_micro_batches(undisturbed):
    units = 2 + 2 + 1  # blocks, embedding and head, root
    assert undisturbed.probe(0)["reduced"] == [units] * 10


def test_sharded_accumulation_reduces_every_micro_batch(server, arguments, tmp_path):
    run = server.train(
        SCRIPT, tmp_path, *arguments, "--steps", 1, "--accumulate", "sharded",
        faults={"probe": {"path": str(tmp_path / "probe")}},
    )  # fmt: skip
    assert run.codes == [0, 0], run.outputs
    assert run.probe(0)["reduced"] == [4 * 5]


def test_the_last_checkpoints_are_kept_and_all_are_whole(undisturbed, server, tmp_path):
    assert undisturbed.checkpoints == ["step-00000009", "step-00000010"]
    newest = undisturbed.folder / "checkpoints" / "step-00000010"
    entries = server.task("checkpoint_entries", tmp_path, newest)
    assert {"run.step", "run.position", "run.schedule", "random.0.cpu", "random.1.cpu"} <= set(entries)
    assert {"model.lm_head.weight", "optimizer.state.lm_head.weight.exp_avg_sq"} <= set(entries)


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
    assert "after step 6; last checkpoint checkpoints/step-00000006" in first.outputs[0]
    assert not (tmp_path / "checkpoints" / "export").exists()
    second = server.train(SCRIPT, tmp_path, *arguments, "--steps", 10, "--save-every", 3)
    assert second.codes == [0, 0], second.outputs
    assert second.trajectory == undisturbed.trajectory
    exports = (run.folder / "checkpoints" / "export" for run in (second, undisturbed))
    assert server.task("compare_states", tmp_path, *exports) == []


@pytest.mark.parametrize(("ranks", "more"), [(4, ["--replicas", 2]), (1, [])])
def test_resuming_on_another_number_of_ranks(server, arguments, undisturbed, tmp_path, *, ranks, more):
    half = undisturbed.folder / "checkpoints" / "step-00000009"
    run = server.train(
        SCRIPT, tmp_path, *arguments, "--steps", 10, "--resume", half, *more, "--export", "none", ranks=ranks
    )
    assert run.codes == [0] * ranks, run.outputs
    assert run.trajectory[-1] == pytest.approx(undisturbed.trajectory[-1], rel=1e-4)
    assert run.trajectory[-1][0] == 10


def test_dropout_is_drawn_as_without_the_stop(server, inputs, tmp_path):
    """GPT-2 with dropout: the generators' states are part of the checkpoint."""
    arguments = [
        "--model",
        inputs / "gpt2",
        "--data",
        inputs / "text.txt",
        *COMMON,
        "--steps",
        6,
        "--save-every",
        3,
    ]
    whole = server.train(SCRIPT, tmp_path / "whole", *arguments)
    assert whole.codes == [0, 0], whole.outputs
    at_three = tmp_path / "whole" / "checkpoints" / "step-00000003"
    rest = server.train(SCRIPT, tmp_path / "rest", *arguments, "--resume", at_three)
    assert rest.codes == [0, 0], rest.outputs
    assert rest.trajectory == whole.trajectory[3:]


def test_frozen_parameters_stay_and_have_no_optimizer_state(server, inputs, arguments, tmp_path):
    run = server.train(SCRIPT, tmp_path, *arguments, "--steps", 4, "--freeze", "*,!*.q_proj.weight", "--save-every", 2)
    assert run.codes == [0, 0], run.outputs
    changed = server.task("compare_states", tmp_path, inputs / "model", tmp_path / "checkpoints" / "export")
    assert changed == [f"model.layers.{i}.self_attn.q_proj.weight" for i in (0, 1)]
    entries = server.task("checkpoint_entries", tmp_path, tmp_path / "checkpoints" / "step-00000004")
    moments = {name for name in entries if name.endswith(".exp_avg")}
    assert moments == {f"optimizer.state.{name}.exp_avg" for name in changed}
    again = server.train(SCRIPT, tmp_path, *arguments, "--steps", 5, "--freeze", "*,!*.q_proj.weight")
    assert again.codes == [0, 0], again.outputs


def test_random_weights_depend_on_the_seed_and_not_on_the_ranks(server, inputs, tmp_path):
    arguments = [
        "--model",
        inputs / "model",
        "--from-scratch",
        "--data",
        inputs / "text.txt",
        *COMMON,
        "--steps",
        2,
    ]
    runs = [
        server.train(SCRIPT, tmp_path / str(ranks), *arguments, "--save-every", 0, "--export", "none", ranks=ranks)
        for ranks in (1, 2, 4)
    ]
    assert [run.codes for run in runs] == [[0] * ranks for ranks in (1, 2, 4)], runs
    for run in runs[1:]:
        assert run.trajectory == [pytest.approx(line, rel=1e-4) for line in runs[0].trajectory]


def test_a_module_that_the_initialiser_forgets_is_found(server, tmp_path):
    run = server.train(SCRIPT, tmp_path, faults={"uninitialised_norm": {}})
    assert run.codes == [1, 1]
    assert "9 tensors are NaN or were never filled, first model.layers.0.input_layernorm.weight" in run.outputs[0]


def test_json_lines_are_read_with_the_models_tokenizer_which_travels_on(server, inputs, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(inputs / "model", folder)
    server.task("make_tokenizer", tmp_path, folder)
    documents = ["one two three .", "two", "", "seven one"]
    lines = [json.dumps({"text": text, "id": i}) + "\n" for i, text in enumerate(documents)]
    (tmp_path / "text.jsonl").write_text("".join(lines))
    settings = ["--model", folder, "--data", tmp_path / "text.jsonl", "--seq-len", 4, "--steps", 2]
    run = server.train(SCRIPT, tmp_path, *settings)
    assert run.codes == [0, 0], run.outputs
    (tokens,) = (tmp_path / "checkpoints").glob("tokens-*.int32")
    numbers = array("i", tokens.read_bytes())
    assert list(numbers) == [2, 3, 4, 5, 1, 3, 1, 1, 0, 2, 1]  # 1 ends a document, 0 is an unknown word
    exported = tmp_path / "checkpoints" / "export"
    assert (exported / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()


def test_a_fine_tune_lowers_the_held_out_loss(server, inputs, tmp_path):
    lines = [f"{a} plus {b} makes {a + b}.\n" for a in range(20) for b in range(20)]
    held_out = "".join(lines[::7])
    (tmp_path / "text.txt").write_text("".join(line for i, line in enumerate(lines) if i % 7))
    run = server.train(
        SCRIPT, tmp_path, "--model", inputs / "model", "--data", tmp_path / "text.txt", "--seq-len", 64,
        "--batch-size", 16, "--micro-batch", 8, "--steps", 150, "--lr", 1e-2, "--warmup", 10,
        "--save-every", 0,
        "--dtype", "bf16", "--recompute", "none",
    )  # fmt: skip
    assert run.codes == [0, 0], run.outputs
    before = server.task("loss_on", tmp_path, inputs / "model", text=held_out)
    after = server.task("loss_on", tmp_path, tmp_path / "checkpoints" / "export", text=held_out)
    print(before, after)
    assert before > 5.5
    assert after < 1.0


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
    taken_up = {"signal_at_step": 6, "kill_in_save": 3}[next(iter(faults))]
    assert f"resuming from checkpoints/step-{taken_up:08d}: step {taken_up}," in run.outputs[0]
    assert run.trajectory == undisturbed.trajectory
    assert run.checkpoints == undisturbed.checkpoints


@pytest.mark.parametrize("first", [0, 1])
def test_two_nodes_start_in_either_order(arguments, undisturbed, tmp_path, first):
    """Two torchrun agents with one worker each; the node with the rendezvous may come last."""
    port = free_port()
    agents = {}
    for node in (first, 1 - first):
        launch = [
            "--nnodes=2",
            f"--node-rank={node}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint=127.0.0.1:{port}",
        ]
        launch += ["--rdzv-id=two-nodes", f"--rdzv-conf=is_host={int(node == 0)}"]
        settings = [*arguments, "--steps", 10, "--save-every", 0, "--export", "none"]
        agents[node] = torchrun(tmp_path, SCRIPT, *settings, ranks=1, launch=launch)
        time.sleep(3)
    runs = [finish(agents[node], tmp_path, number) for number, node in enumerate((first, 1 - first))]
    assert [run.codes for run in runs] == [[0], [0]], runs
    assert runs[0].trajectory == undisturbed.trajectory


def test_started_without_torchrun(tmp_path):
    command = [sys.executable, SCRIPTS / SCRIPT]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "train_fsdp2.py: not started by torchrun; `torchrun --nproc-per-node 2 train_fsdp2.py` does\n"


def test_more_ranks_than_gpus(server, tmp_path):
    run = server.train(SCRIPT, tmp_path, faults={"pretend_gpus": {"count": 1}})
    assert run.codes == [2, 2]
    assert run.outputs == [
        "train_fsdp2.py: 2 ranks on a node with 1 GPUs; give torchrun --nproc-per-node 1\n",
        "",
    ]


@pytest.mark.parametrize(
    ("code", "more", "message"),
    [
        (2, ["--batch-size", 6], "--batch-size 6 does not divide by --micro-batch 2 x 2 ranks; give a"),
        (2, ["--replicas", 3], "--replicas 3 does not divide 2 ranks; give a divisor"),
        (2, ["--reshard", 3], "--reshard 3 does not divide the 2 ranks of the model"),
        (2, ["--reshard", "often"], "--reshard is often; give true, false or a number of ranks"),
        (2, ["--steps", 0], "--steps is 0; give at least 1"),
        (2, ["--from-scratch"], "--from-scratch takes the config of --model; give --model"),
        (2, ["--block-class", "GPT2Block"], "no block of class ['GPT2Block'] in the model; try --block-class"),
        (2, ["--freeze", "*.bias"], "--freeze: no parameter matches *.bias; a name is model.embed"),
        (2, ["--freeze", "*"], "--freeze * leaves nothing to train; take some back with `!PATTERN`"),
        (2, ["--model", "nowhere"], "--model nowhere has no config.json; give a Hugging Face model's folder"),
        (2, ["--data", "nowhere.txt"], "--data nowhere.txt is not a file; give plain text or JSON lines"),
        (2, ["--data", "in/empty.txt"], "--data in/empty.txt has no text"),
        (2, ["--data", "in/bad.jsonl"], 'in/bad.jsonl:2 is not a line such as {"text": "..."}'),
        (2, ["--resume", "nowhere"], "--resume nowhere is no whole checkpoint; there are []"),
        (2, ["--model", "in/small"], "id 116 is beyond the model's vocabulary of 100"),
        (1, ["--model", "in/weightless"], "no file named model.safetensors"),
        (1, ["--data", "in/latin1.txt"], "'utf-8' codec can't decode byte 0xe9 in position 3"),
    ],
)  # fmt: skip
def test_what_a_person_can_mend_is_said_in_one_line_on_rank_0(server, inputs, tmp_path, *, code, more, message):
    (tmp_path / "in").symlink_to(inputs)
    run = server.train(SCRIPT, tmp_path, *more)
    assert run.codes == [code, code], run.outputs
    said = run.outputs[0].replace("no CUDA device: training on CPUs with gloo\n", "")
    assert said.startswith("train_fsdp2.py: ") and said.count("\n") == 1
    assert message in said
    assert run.outputs[1] == ""


@pytest.mark.parametrize(
    ("more", "about"),
    [
        (["--model", "deep"], "another model"),
        (["--freeze", "*norm*"], "another model"),
        (["--seed", 1], "another data"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(server, inputs, arguments, undisturbed, tmp_path, *, more, about):
    more = [inputs / "deep" if word == "deep" else word for word in more]
    checkpoint = undisturbed.folder / "checkpoints" / "step-00000009"
    run = server.train(SCRIPT, tmp_path, *arguments, "--resume", checkpoint, *more)
    assert run.codes == [2, 2], run.outputs
    assert f"train_fsdp2.py: {checkpoint} is of {about}: " in run.outputs[0]


def test_resume_none_does_not_write_over_an_earlier_run(server, arguments, undisturbed, tmp_path):
    shutil.copytree(undisturbed.folder / "checkpoints", tmp_path / "checkpoints")
    run = server.train(SCRIPT, tmp_path, *arguments, "--resume", "none")
    assert run.codes == [2, 2]
    assert "--resume none, but checkpoints/step-00000010 is there; give another --checkpoint-dir\n" in run.outputs[0]


def test_a_half_written_checkpoint_is_not_taken_for_a_whole_one(server, arguments, undisturbed, tmp_path):
    shutil.copytree(undisturbed.folder / "checkpoints", tmp_path / "checkpoints")
    newest = tmp_path / "checkpoints" / "step-00000010"
    newest.rename(newest.with_suffix(".partial"))
    run = server.train(SCRIPT, tmp_path, *arguments, "--steps", 10)
    assert run.codes == [0, 0], run.outputs
    assert "resuming from checkpoints/step-00000009: step 9, 72 sequences seen" in run.outputs[0]
    assert run.trajectory == undisturbed.trajectory[9:]
    assert run.checkpoints == ["step-00000009", "step-00000010"]


def test_a_loss_that_is_not_finite_stops_and_names_step_rank_and_checkpoint(server, arguments, tmp_path):
    faults = {"nan_loss": {"step": 4, "on_rank": 1}}
    run = server.train(SCRIPT, tmp_path, *arguments, "--steps", 5, "--save-every", 2, faults=faults)
    assert run.codes == [1, 1]
    assert (
        "train_fsdp2.py: step 4: the loss of rank 1 is not finite; "
        "last checkpoint checkpoints/step-00000002; "
        "look at this step's data, lower --lr or pass --on-nonfinite skip\n"
    ) in run.outputs[0]


def test_a_loss_that_is_not_finite_can_be_skipped(server, arguments, tmp_path):
    faults = {"nan_loss": {"step": 2, "on_rank": 1}}
    run = server.train(SCRIPT, tmp_path, *arguments, "--steps", 3, "--on-nonfinite", "skip", faults=faults)
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
    line = run.outputs[0].splitlines()[-1]
    assert line.startswith("train_fsdp2.py: checkpoints: no checkpoint written (")
    assert "last checkpoint checkpoints/step-00000002; make room, then start the same command again" in line
    assert run.checkpoints == ["step-00000002", "step-00000003.partial"]


def test_help_names_every_setting_in_one_screen(tmp_path):
    command, wide = [sys.executable, SCRIPTS / SCRIPT, "--help"], {**ENVIRONMENT, "COLUMNS": "110"}
    done = subprocess.run(command, capture_output=True, text=True, env=wide, check=False)
    assert done.returncode == 0
    assert done.stdout.count("\n") <= 60
    for option in (
        *COMMON[::2],
        "--model",
        "--freeze",
        "--resume",
        "--metrics",
        "--on-nonfinite",
        "--timeout",
    ):
        assert f"\n  {option} " in done.stdout

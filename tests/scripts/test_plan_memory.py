"""The memory planner: its figures against torch's and transformers' own, its choices, its command line, its plot."""

import json
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from benchmarks.memory import FIGURES, MODELS, case, count_parameters, errors, measure, planner, predict, short
from tests.scripts.conftest import in_terminal, uncoloured

SCRIPT = Path(__file__).parents[2] / "scripts" / "plan_memory.py"
EIGHT_B = MODELS["llama-3.1-8b"]
MODEL_8B = planner.read_model(EIGHT_B, "llama-3.1-8b")


def run(*arguments: object, script: Path = SCRIPT) -> subprocess.CompletedProcess[str]:
    """The script as a user runs it, with nothing but the standard library to import."""
    command = [sys.executable, "-I", "-S", str(script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def plan(**settings):
    return planner.make_plan(MODEL_8B, settings)


# --- against torch and transformers ----------------------------------------------------------------------------

MEASURED = (
    case("fp32, tied", short("llama-3.2-1b", 2), precision="fp32", seq=1024),
    case("bf16, 64 GPUs, full, chunks", short("llama-3.1-8b", 2), gpus=64, recompute="full", chunks=2),
    case("HSDP, selective", short("qwen3-8b", 2), seq=1024, gpus=64, strategy="hsdp", recompute="selective"),
    case("no reshard, SGD", short("pythia-6.9b", 2), seq=256, strategy="grad-op", optimizer="sgd"),
    case("experts that 64 does not divide", short("mixtral-8x7b", 2), seq=1024, gpus=64),
)
"""A few, and small ones; benchmarks/memory.py has all."""


@pytest.mark.parametrize("each", MEASURED, ids=lambda each: each.name)
def test_figures_are_those_of_torch(each):
    found = errors(predict(each.model, each.plan), measure(each.config, each.plan))
    assert {name: error for name, error in found.items() if abs(error) > FIGURES[name]} == {}


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_those_of_transformers(name):
    assert planner.read_model(MODELS[name], name).parameters == count_parameters(MODELS[name])


@pytest.mark.parametrize(
    "change",
    [{"attention_bias": True}, {"head_dim": 96, "num_key_value_heads": 32, "tie_word_embeddings": True}],
    ids=str,
)
def test_parameters_follow_the_fields_of_a_config(change):
    config = short("llama-3.1-8b", 2, **change)
    assert planner.read_model(config, "case").parameters == count_parameters(config)


# --- the step --------------------------------------------------------------------------------------------------


def test_every_rank_keeps_sixteen_bytes_a_parameter_over_its_shards():
    found = plan(gpus=64)
    gradients = 4 * found.shard
    assert found.memory["parameters"] + found.memory["optimizer state"] + gradients == 16 * MODEL_8B.parameters / 64


@pytest.mark.parametrize(
    ("optimizer", "bytes_each"), [("adamw", 8), ("adamw-fused", 8), ("sgd", 4), ("adamw-8bit", 2.03125)]
)
def test_optimizer_state_has_its_bytes_a_parameter(optimizer, bytes_each):
    assert plan(optimizer=optimizer).memory["optimizer state"] == bytes_each * MODEL_8B.parameters / 8


def test_muon_keeps_one_tensor_for_matrices_of_blocks_and_two_elsewhere():
    norms, outside = 2 * 32 * 4096, 2 * 128256 * 4096 + 4096
    state = plan(optimizer="muon", strategy="ddp").memory["optimizer state"]
    assert state == 4 * (MODEL_8B.parameters + norms + outside)


def test_a_tiny_batch_peaks_at_the_end_of_backward_and_a_long_one_at_the_loss():
    assert (plan(seq=128).moment, plan(seq=8192).moment) == ("backward, root", "loss")


def test_offload_moves_shards_to_the_host():
    on_gpu, off = plan(), plan(offload=True)
    assert [off.memory[kind] for kind in ("parameters", "optimizer state", "gradients")] == [0, 0, 0]
    assert (on_gpu.host, off.host) == (0, 16 * MODEL_8B.parameters)


def test_ddp_keeps_buckets_beside_whole_gradients():
    found = plan(strategy="ddp", seq=128, optimizer="adamw-fused")
    assert found.moment == "loss"
    assert found.memory["gradients"] == found.memory["gradient buffers"] == 4 * MODEL_8B.parameters


def test_tensor_parallelism_divides_matrices_and_most_activations():
    one, four = (plan(tp=tp).memory for tp in (1, 4))
    assert four["logits and loss"] == one["logits and loss"] / 4
    assert one["activations"] / 4 < four["activations"] < one["activations"] / 2
    assert four["parameters"] == pytest.approx(one["parameters"], rel=0.001)


def test_context_parallelism_divides_tokens():
    one, four = (plan(cp=cp, seq=32768).memory for cp in (1, 4))
    assert (four["activations"], four["parameters"]) == (one["activations"] / 4, one["parameters"])


def test_checkpointing_keeps_less_and_full_repeats_the_forward():
    none, selective, full = (plan(recompute=name, seq=8192) for name in ("none", "selective", "full"))
    assert none.total > selective.total > full.total
    assert full.compute == pytest.approx(none.compute * 4 / 3)


def test_sent_bytes_are_those_of_zero():
    assert plan(precision="bf16").sent == pytest.approx(3 * 2 * MODEL_8B.parameters * 7 / 8)
    assert plan(precision="bf16", strategy="grad-op").sent == pytest.approx(2 * 2 * MODEL_8B.parameters * 7 / 8)
    assert plan(precision="bf16", strategy="ddp").sent == pytest.approx(2 * 2 * MODEL_8B.parameters * 7 / 8)


def test_traffic_between_nodes_takes_longer():
    assert plan(gpus=16).sending > 2 * plan(gpus=16, node=16).sending
    assert plan(gpus=16, strategy="8").sending < plan(gpus=16).sending


# --- choices ---------------------------------------------------------------------------------------------------


def test_the_fewest_changes_come_first_and_fit():
    found = planner.search(MODEL_8B, plan(seq=8192, batch=2), [*planner.LADDERS], 3)
    changed = [sum(q.settings[name] != plan(seq=8192, batch=2).settings[name] for name in q.settings) for q in found]
    assert changed == sorted(changed)
    assert changed[0] == 1
    assert all(q.fits for q in found)
    rates = [q.speed / q.gpus for q, number in zip(found, changed, strict=True) if number == 1]
    assert rates == sorted(rates, reverse=True)


def test_a_search_finds_plans_that_fit_the_fastest_first():
    names = [name for name in planner.LADDERS if name not in ("precision", "optimizer")]
    found = planner.search(MODEL_8B, plan(gpus=16, seq=8192), names, len(names))
    rates = [q.speed for q in found]
    assert len({(q.strategy, q.recompute, q.tp, q.cp) for q in found}) == 10
    assert rates == sorted(rates, reverse=True)
    assert all(q.fits and q.seq == 8192 and q.gpus == 16 and q.optimizer == "adamw" for q in found)


# --- the command line ------------------------------------------------------------------------------------------


def test_it_runs_alone_and_says_that_a_plan_fits(tmp_path):
    result = run("llama-3.1-8b", script=Path(shutil.copy(SCRIPT, tmp_path)))
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines()[0] == "llama-3.1-8b: 8,030,261,248 parameters on 8 x h100"
    assert "of 79.6: it fits" in result.stdout


def test_a_plan_that_does_not_fit_exits_1_with_changes_that_work():
    arguments = ["llama-3.1-8b", "--seq", 8192, "--batch", 2]
    result = run(*arguments)
    assert result.returncode == 1
    assert "it does NOT fit" in result.stdout
    first = result.stdout.partition("What fits")[2].splitlines()[2]
    assert run("llama-3.1-8b", *first[first.index("--") :].split()).returncode == 0


def test_json_has_what_the_text_has():
    data = json.loads(run("llama-3.1-8b", "--gib", "40", "--json").stdout)
    assert (data["model"]["parameters"], data["plan"]["fits"]) == (8030261248, False)
    assert sum(data["plan"]["memory"].values()) == pytest.approx(data["plan"]["total"])
    assert data["plan"]["moment"] == "loss"
    assert data["found"][0]["fits"]


def test_search_prints_plans_that_the_command_accepts():
    result = run("llama-3.1-8b", "--gpus", 16, "--gpu", "l4", "--search")
    assert result.returncode == 0
    line = result.stdout.partition("What fits")[2].splitlines()[2]
    assert run("llama-3.1-8b", *line[line.index("--") :].split()).returncode == 0


def test_search_without_a_plan_that_fits_exits_1():
    result = run("llama-3.1-8b", "--gpus", 2, "--gib", 1, "--search")
    assert result.returncode == 1
    assert "Nothing fits" in result.stdout


@pytest.mark.parametrize("named", ["file", "folder"])
def test_a_config_is_read_from_its_file_or_folder(tmp_path, named):
    (tmp_path / "config.json").write_text(json.dumps(EIGHT_B))
    data = json.loads(run(tmp_path if named == "folder" else tmp_path / "config.json", "--json").stdout)
    assert (data["model"]["parameters"], data["model"]["note"]) == (8030261248, "")


def test_a_multimodal_config_is_planned_by_its_text_model():
    text = {"text_config": {key: value for key, value in EIGHT_B.items() if key != "model_type"}}
    assert planner.read_model({"model_type": "llama", **text}, "case").parameters == MODEL_8B.parameters


def test_an_unknown_family_is_planned_as_a_llama_and_says_so(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(EIGHT_B | {"model_type": "novel"}))
    assert "model_type 'novel' is planned as a Llama" in run(tmp_path).stdout


@pytest.mark.parametrize("base", [("--layers", 40, "--hidden", 5120), ("mixtral-8x7b",)], ids=str)
def test_parameters_can_be_given(base):
    data = json.loads(run(*base, "--params", "13e9", "--json").stdout)
    assert data["model"]["parameters"] == pytest.approx(13e9, rel=0.01)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no model; give a preset, config.json, or --layers and --hidden"),
        (["nowhere"], "No such file or directory: 'nowhere'; give a config.json or llama-3.1-8b"),
        (["llama-3.1-8b", "--batch", "0"], "--batch 0 is too little"),
        (["llama-3.1-8b", "--node", "-8"], "--node -8 is too little"),
        (["llama-3.1-8b", "--tp", "3"], "--tp 3 --cp 1 do not divide --gpus 8 or a node"),
        (["llama-3.1-8b", "--strategy", "zero"], "--strategy zero is unknown; give ddp, grad-op, hsdp, fsdp or a"),
        (["llama-3.1-8b", "--strategy", "3"], "--strategy 3 is unknown"),
        (["llama-3.1-8b", "--strategy", "ddp", "--offload"], "--offload needs FSDP; change --strategy"),
        (["llama-3.1-8b", "--plot", "no/such/bars.svg"], "No such file or directory: 'no/such/bars.svg'"),
        (["llama-3.1-8b", "--plot", "bars.png"], "'matplotlib'; install matplotlib or let --plot end with .svg"),
        (["llama-3.1-8b", "--params", "1e6"], "give a positive whole number"),
        (["--layers", "2", "--hidden", "64", "--heads", "0"], "size heads is 0; give a positive whole number"),
    ],
    ids=str,
)
def test_a_wrong_request_is_a_line_and_exit_2(arguments, message):
    result = run(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Expecting property name"),
        ("[1]", "give a config.json"),
        ('{"hidden_size": 64}', "size vocab is None; give a positive whole number"),
        ('{"hidden_size": "64", "vocab_size": 10}', "size hidden is '64'; give a positive whole number"),
    ],
)
def test_a_damaged_config_is_named(tmp_path, text, message):
    path = tmp_path / "config.json"
    path.write_text(text)
    result = run(path)
    assert result.returncode == 2
    assert message in result.stderr
    assert str(path) in result.stderr
    assert len(result.stderr.splitlines()) == 1


# --- a terminal ------------------------------------------------------------------------------------------------

NO_FIT = ["llama-3.1-8b", "--seq", "8192", "--batch", "2"]


def columns(table):
    """The columns of what rich drew with lines between them, without its head."""
    rows = [line.split("│")[1:-1] for line in uncoloured(table).splitlines() if line.startswith("│")]
    return [*zip(*rows, strict=True)]


@pytest.mark.parametrize("arguments", [["llama-3.1-8b"], NO_FIT], ids=["it fits", "it does NOT fit"])
def test_a_terminal_gets_tables_with_all_that_the_text_has(arguments):
    code, shown = in_terminal(sys.executable, "-I", SCRIPT, *arguments)
    text = run(*arguments)
    assert code == text.returncode
    assert "│" in shown
    assert re.sub(r"[─-╿]", " ", uncoloured(shown)).split() == text.stdout.split()


def test_a_terminal_gets_what_fits_in_green_and_what_does_not_in_red():
    _, fits = in_terminal(sys.executable, "-I", SCRIPT, "llama-3.1-8b")
    assert re.search(r"\x1b\[32mof 79.6: it fits", fits)
    assert "\x1b[31m" not in fits
    _, no_fit = in_terminal(sys.executable, "-I", SCRIPT, *NO_FIT)
    wanted, found = no_fit.split("What fits")
    assert re.search(r"\x1b\[31mof 79.6: it does NOT fit", wanted)
    assert re.search(r"\x1b\[31m--seq 8192 --batch 2 --strategy fsdp", wanted)
    assert re.search(r"\x1b\[32m--seq 8192 --batch 2 --strategy fsdp --cp 4", found)
    assert "\x1b[32m" not in wanted
    assert "\x1b[31m" not in found


def test_numbers_are_aligned_on_the_right_in_a_terminal():
    _, shown = in_terminal(sys.executable, "-I", SCRIPT, *NO_FIT)
    numbers = columns(shown.split("What fits")[1])[:-1]
    assert len(numbers) == 5
    for column in numbers:
        assert {cell[-1] for cell in column} == {" "}
        assert all(cell[-2].isdigit() for cell in column)
        assert len({len(cell) for cell in column}) == 1


def test_a_terminal_without_rich_gets_the_text():
    _, shown = in_terminal(sys.executable, "-I", "-S", SCRIPT, *NO_FIT)
    assert shown == run(*NO_FIT).stdout


def test_what_is_piped_is_the_text_and_loads_neither_rich_nor_matplotlib():
    command = [sys.executable, "-I", "-X", "importtime", str(SCRIPT), *NO_FIT]
    forced = {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
    piped = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=forced)
    assert piped.stdout == run(*NO_FIT).stdout
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in piped.stderr.splitlines()}
    assert "argparse" in loaded
    assert not loaded & {"rich", "matplotlib"}


# --- the plot --------------------------------------------------------------------------------------------------


def test_the_plot_shows_each_strategy_against_the_gpu(tmp_path):
    path = tmp_path / "memory.svg"
    assert run("llama-3.1-8b", "--gpus", 64, "--strategy", 8, "--plot", path).returncode == 0
    root = ET.parse(path).getroot()
    words = [element.text for element in root.iter() if element.tag.endswith("text")]
    totals = {word.partition(": ")[0] for word in words if word.endswith(" GiB")}
    assert totals == {"ddp", "grad-op", "hsdp", "fsdp", "8", "GPU"}
    ddp = plan(gpus=64, strategy="ddp").total / planner.GIB
    assert {"GPU: 79.6 GiB", f"ddp: {ddp:.1f} GiB"} <= set(words)
    assert set(planner.KINDS) <= set(words)


def test_the_plot_names_the_model_as_it_is_called(tmp_path):
    model, path = tmp_path / "a & b <c> $d$", tmp_path / "memory.svg"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(EIGHT_B))
    assert run(model, "--plot", path).returncode == 0
    words = " ".join(element.text for element in ET.parse(path).getroot().iter() if element.tag.endswith("text"))
    assert "a & b <c> $d$, a GPU at its peak, in GiB: --strategy fsdp" in words


def test_nothing_in_the_plot_leaves_it(tmp_path):
    path = tmp_path / "memory.svg"
    run("llama-3.1-70b", "--gpus", 8, "--gpu", "l4", "--plot", path)
    root = ET.parse(path).getroot()
    width, height = float(root.get("width")), float(root.get("height"))
    for element in root.iter():
        x, y = float(element.get("x", 0)), float(element.get("y", 0))
        right = x + float(element.get("width", 0)) if element.tag.endswith("rect") else x
        assert 0 <= x <= right <= width
        assert 0 <= y <= height


# --- the plot by matplotlib ------------------------------------------------------------------------------------

with_matplotlib = pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is absent")


def run_with_matplotlib(*arguments):
    command = [sys.executable, "-I", str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@with_matplotlib
def test_a_png_has_the_bars_of_the_svg(tmp_path):
    from PIL import Image

    arguments = ["llama-3.1-8b", "--gpus", "64", "--strategy", "8", "--plot"]
    assert run(*arguments, tmp_path / "memory.svg").returncode == 0
    done = run_with_matplotlib(*arguments, tmp_path / "memory.PNG")
    assert (done.returncode, done.stderr) == (0, "")
    root = ET.parse(tmp_path / "memory.svg").getroot()
    image = Image.open(tmp_path / "memory.PNG").convert("RGB")
    assert image.size == (2 * int(root.get("width")), 2 * int(root.get("height")))
    ground, *bars = [element for element in root.iter() if element.tag.endswith("rect")]
    assert (ground.get("fill"), image.getpixel((0, 0))) == ("#fff", (255, 255, 255))
    seen = set()
    for bar in bars:
        x, y, width = (float(bar.get(name)) for name in ("x", "y", "width"))
        if width >= 2:  # a thinner one has no pixel of its own
            colour = "#{:02x}{:02x}{:02x}".format(*image.getpixel((int(2 * x + width), int(2 * y) + 4)))
            assert colour == bar.get("fill")
            seen.add(colour)
    assert seen == {*planner.KINDS.values(), "#c0262d"}


@with_matplotlib
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"gpus": 64, "strategy": "16", "seq": 8192},
        {"gib": 40.0, "seq": 2048},
        {"gib": 1.5},
        {
            "seq": 16384, "batch": 2, "gpu": "h200", "gib": 139.5, "gpus": 512, "node": 16, "strategy": "hsdp",
            "precision": "bf16", "optimizer": "adamw-fused", "recompute": "selective", "tp": 2, "cp": 4, "chunks": 8,
            "offload": True,
        },
    ],
    ids=["defaults", "a strategy more", "a small GPU", "a tiny GPU", "all settings"],
)  # fmt: skip
def test_texts_of_the_png_are_free_of_each_other_and_of_the_limit(settings, tmp_path, monkeypatch):
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import to_hex
    from matplotlib.figure import Figure

    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **_: drawn.append(figure))
    planner.draw(tmp_path / "memory.png", MODEL_8B, plan(**settings))
    ((axes,),) = [figure.axes for figure in drawn]
    renderer = FigureCanvasAgg(axes.figure).get_renderer()
    boxes = {(text.get_text(), *text.get_position()): text.get_window_extent(renderer) for text in axes.texts}
    assert len(boxes) == len(axes.texts) > len(planner.KINDS)
    picture = axes.get_window_extent(renderer)
    assert [name for name, box in boxes.items() if not (picture.x0 < box.x0 and box.x1 < picture.x1)] == []
    assert [name for name, box in boxes.items() if not (picture.y0 < box.y0 and box.y1 < picture.y1)] == []
    assert [(a, b) for a, b in combinations(boxes, 2) if boxes[a].overlaps(boxes[b])] == []
    (limit,) = [patch for patch in axes.patches if to_hex(patch.get_facecolor()) == "#c0262d"]
    line = limit.get_window_extent(renderer)
    assert [name for name, box in boxes.items() if box.overlaps(line)] == []


@with_matplotlib
def test_dollars_in_a_name_are_no_formula(tmp_path):
    model = tmp_path / r"$\frac$"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(EIGHT_B))
    done = run_with_matplotlib(model, "--plot", tmp_path / "memory.png")
    assert (done.returncode, done.stderr) == (0, "")


@with_matplotlib
def test_a_png_that_cannot_be_written_is_a_line_and_exit_2():
    done = run_with_matplotlib("llama-3.1-8b", "--plot", "no/such/bars.png")
    assert (done.returncode, done.stdout) == (2, "")
    assert "No such file or directory: 'no/such/bars.png'" in done.stderr
    assert len(done.stderr.splitlines()) == 1

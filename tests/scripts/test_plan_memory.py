"""The memory planner: its figures against torch's and transformers' own, its choices, its command line, its plot."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from benchmarks.memory import FIGURES, OTHERS, case, count_parameters, errors, measure, planner, predict, short

SCRIPT = Path(__file__).parents[2] / "scripts" / "plan_memory.py"
H100, EIGHT_B = planner.GPUS["h100"], planner.PRESETS["llama-3.1-8b"]
MODEL_8B = planner.read_model(EIGHT_B, "llama-3.1-8b")


def run(*arguments: object, script: Path = SCRIPT) -> subprocess.CompletedProcess[str]:
    """The script as a user runs it, with nothing but the standard library to import."""
    command = [sys.executable, "-I", "-S", str(script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def by_kind(model: object, plan: object) -> dict[str, dict[str, float]]:
    return dict(planner.Step(model, plan).moments())


# --- against torch and transformers ----------------------------------------------------------------------------

MEASURED = (
    case("fp32, tied", short("llama-3.2-1b", 3), precision="fp32", seq=1024),
    case(
        "bf16, 64 GPUs, chunks, full", short("llama-3.1-8b", 4), seq=4096, gpus=64, checkpointing="full", loss_chunks=8
    ),
    case("selective", short("qwen2.5-7b", 3), seq=2048, checkpointing="selective"),
    case(
        "HSDP, reduce in bf16, accumulated", short("qwen3-8b", 3), gpus=64, strategy="hsdp", reduce="bf16", accumulate=2
    ),
    case("no reshard, eager, capped", short("gemma-2-9b", 3), seq=1024, strategy="grad-op"),
    case("reshard to 8", short("phi-4", 3), seq=512, gpus=64, strategy="8"),
    case("parallel blocks, SGD", short("pythia-6.9b", 3), seq=256, optimizer="sgd"),
    case("experts that 64 does not divide", short("mixtral-8x7b", 2), seq=1024, gpus=64),
)


@pytest.mark.parametrize("each", MEASURED, ids=lambda each: each.name)
def test_figures_are_those_of_torch(each):
    found = errors(predict(each.config, each.plan), measure(each.config, each.plan))
    assert {name: error for name, error in found.items() if abs(error) > FIGURES[name]} == {}


@pytest.mark.parametrize("name", [*planner.PRESETS, *OTHERS])
def test_parameters_are_those_of_transformers(name):
    config = (planner.PRESETS | OTHERS)[name]
    assert planner.read_model(config, name).parameters == count_parameters(config)


@pytest.mark.parametrize(
    "change",
    [
        {"mlp_bias": True, "attention_bias": True},
        {"head_dim": 96, "num_key_value_heads": 32, "tie_word_embeddings": True},
        {"model_type": "granite"},
        {"model_type": "smollm3"},
        {"model_type": "qwen2_moe", "num_experts": 8, "num_experts_per_tok": 2, "decoder_sparse_step": 2}
        | {"moe_intermediate_size": 512, "shared_expert_intermediate_size": 768, "mlp_only_layers": [3]},
    ],
    ids=str,
)
def test_parameters_follow_the_fields_of_a_config(change):
    config = short("llama-3.1-8b", 6, **change)
    assert planner.read_model(config, "case").parameters == count_parameters(config)


# --- the step --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["deepseek-v3", "qwen3-30b-a3b", "llama-3.1-405b"])
def test_no_block_peaks_higher_than_those_that_are_looked_at(name, monkeypatch):
    config = planner.PRESETS[name] | ({"mlp_only_layers": [5, 20]} if name.startswith("qwen") else {})
    model = planner.read_model(config, name)
    plans = [
        planner.Plan(gpus=64, strategy=s, checkpointing=c) for s in ("fsdp", "grad-op", "8") for c in ("none", "full")
    ]
    peaks = [max(sum(kinds.values()) for kinds in by_kind(model, plan).values()) for plan in plans]
    monkeypatch.setattr(planner.Step, "ends", lambda step: range(len(step.model.blocks)))
    assert peaks == [max(sum(kinds.values()) for kinds in by_kind(model, plan).values()) for plan in plans]


def test_every_rank_keeps_sixteen_bytes_a_parameter_over_its_shards():
    end = by_kind(MODEL_8B, planner.Plan(gpus=64))["optimizer step"]
    assert end["parameters"] + end["gradients"] + end["optimizer"] == 16 * MODEL_8B.parameters / 64


@pytest.mark.parametrize(
    ("optimizer", "bytes_each"), [("adamw", 8), ("adamw-fused", 8), ("sgd", 4), ("adamw-8bit", 2.03125)]
)
def test_optimizer_state_has_its_bytes_a_parameter(optimizer, bytes_each):
    state, _ = planner.optimizer_bytes(MODEL_8B, planner.Plan(optimizer=optimizer))
    assert state == bytes_each * MODEL_8B.parameters / 8


def test_muon_keeps_one_tensor_for_matrices_of_blocks_and_two_elsewhere():
    state, _ = planner.optimizer_bytes(MODEL_8B, planner.Plan(optimizer="muon", strategy="ddp"))
    norms = 2 * 32 * 4096
    outside = 2 * 128256 * 4096 + 4096
    assert state == 4 * (MODEL_8B.parameters + norms + outside)


def test_offload_moves_shards_to_the_host():
    on_gpu, off = (planner.forecast(MODEL_8B, planner.Plan(offload=o), H100, 0.4) for o in (False, True))
    assert (off.memory["parameters"], off.memory["gradients"], off.memory["optimizer"]) == (0, 0, 0)
    assert (on_gpu.host, off.host) == (0, 16 * MODEL_8B.parameters)


def test_tensor_parallelism_divides_matrices_and_most_activations():
    one, four = (by_kind(MODEL_8B, planner.Plan(tp=tp))["loss, forward"] for tp in (1, 4))
    assert four["logits"] == one["logits"] / 4
    assert one["activations"] / 4 < four["activations"] < one["activations"] / 2
    assert four["parameters"] == pytest.approx(one["parameters"], rel=0.001)


def test_context_parallelism_divides_tokens():
    one, four = (by_kind(MODEL_8B, planner.Plan(cp=cp))["loss, forward"] for cp in (1, 4))
    assert (four["activations"], four["parameters"]) == (one["activations"] / 4, one["parameters"])


def test_sent_bytes_are_those_of_zero():
    sent = planner.forecast(MODEL_8B, planner.Plan(precision="bf16"), H100, 0.4).traffic
    assert sum(sent.values()) == 3 * 2 * MODEL_8B.parameters * 7 / 8
    assert set(sent) == {"all-gather", "all-gather in backward", "reduce-scatter"}
    assert set(planner.forecast(MODEL_8B, planner.Plan(strategy="ddp"), H100, 0.4).traffic) == {"all-reduce"}


def test_slower_links_and_fewer_flops_cost_time():
    plan = planner.Plan(gpus=64, strategy="fsdp")
    fast, slow_links, slow_gpu = (
        planner.forecast(MODEL_8B, plan, gpu, 0.4).seconds
        for gpu in (H100, replace(H100, network=1), replace(H100, tflops=50))
    )
    assert fast < slow_links
    assert fast < slow_gpu


# --- choices ---------------------------------------------------------------------------------------------------


def test_a_remedy_fits_and_one_change_is_preferred_to_two():
    plan = planner.Plan(seq=8192, batch=2)
    ways = planner.remedies(MODEL_8B, plan, H100, 0.4)
    assert ways
    for change, result in ways:
        assert set(change) in ({"checkpointing"}, {"tp"}, {"cp"}, {"batch", "accumulate"})
        assert result.plan == replace(plan, **change)
        assert result.fits(H100)
    rates = [result.tokens_per_second / result.plan.gpus for _, result in ways]
    assert rates == sorted(rates, reverse=True)


def test_search_finds_plans_that_fit_the_fastest_first():
    found = planner.search(MODEL_8B, planner.Plan(gpus=16, seq=8192), H100, 0.4)
    rates = [result.tokens_per_second for result in found]
    assert len(found) == 10
    assert rates == sorted(rates, reverse=True)
    assert all(result.fits(H100) and result.plan.seq == 8192 and result.plan.gpus == 16 for result in found)


def test_search_offloads_only_when_nothing_else_fits():
    small = planner.Gpu("GPU", 24)
    found = planner.search(MODEL_8B, planner.Plan(gpus=2, gpus_per_node=2), small, 0.4)
    assert found
    assert all(result.plan.offload for result in found)


def test_offload_that_the_host_cannot_hold_does_not_fit():
    small, large = (planner.Plan(offload=True, checkpointing="full", host_memory=size) for size in (100, 200))
    assert planner.forecast(MODEL_8B, large, H100, 0.4).fits(H100)
    assert not planner.forecast(MODEL_8B, small, H100, 0.4).fits(H100)


# --- the command line ------------------------------------------------------------------------------------------


def test_it_runs_alone_and_says_that_a_plan_fits(tmp_path):
    copy = shutil.copy(SCRIPT, tmp_path)
    result = run("llama-3.1-8b", script=Path(copy))
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines()[0] == "llama-3.1-8b, 8.03 B parameters, on 8 x h100 (79.6 GiB)"
    assert "GiB to spare" in result.stdout


def test_a_plan_that_does_not_fit_exits_1_with_remedies_that_work():
    result = run("llama-3.1-8b", "--seq", 8192, "--batch", 2)
    assert result.returncode == 1
    assert "does NOT fit" in result.stdout
    first = result.stdout.partition("Cheapest changes that make it fit")[2].splitlines()[2].split("  ")[1]
    assert run("llama-3.1-8b", "--seq", 8192, "--batch", 2, *first.split()).returncode == 0


def test_json_has_what_the_text_has():
    data = json.loads(run("llama-3.1-8b", "--gpu", "40", "--json").stdout)
    assert (data["model"], data["parameters"], data["fits"]) == ("llama-3.1-8b", 8030261248, False)
    assert set(data["memory"]) == set(planner.KINDS)
    assert sum(data["memory"].values()) == pytest.approx(data["total"])
    assert data["moment"] == "loss, backward"
    assert data["remedies"][0]["fits"]


def test_search_prints_plans_that_the_command_accepts():
    arguments = ["llama-3.2-1b", "--gpus", 16, "--gpu", "l4"]
    result = run(*arguments, "--search")
    assert result.returncode == 0
    settings = next(line for line in result.stdout.splitlines() if line.startswith("  1 ")).partition("--")
    assert run(*arguments, *(settings[1] + settings[2]).split()).returncode == 0
    assert len(json.loads(run(*arguments, "--search", "--json").stdout)["found"]) == 10


def test_search_without_a_plan_that_fits_exits_1():
    result = run("llama-3.1-8b", "--gpus", 2, "--gpu", "1", "--search")
    assert result.returncode == 1
    assert "No plan fits" in result.stdout


@pytest.mark.parametrize("named", ["file", "folder"])
def test_a_config_is_read_from_its_file_or_folder(tmp_path, named):
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(EIGHT_B))
    data = json.loads(run(folder if named == "folder" else folder / "config.json", "--json").stdout)
    assert (data["model"], data["parameters"], data["notes"]) == ("my-model", 8030261248, [])


def test_a_multimodal_config_is_planned_by_its_text_model():
    text = {"text_config": {key: value for key, value in EIGHT_B.items() if key != "model_type"}}
    assert planner.read_model({"model_type": "llama", **text}, "case").parameters == MODEL_8B.parameters


def test_an_unknown_family_is_planned_as_a_llama_and_says_so(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(EIGHT_B | {"model_type": "novel"}))
    result = run(tmp_path)
    assert "note: model_type 'novel' is unknown, planned as a Llama of its sizes" in result.stdout


@pytest.mark.parametrize("base", [(), ("mixtral-8x7b",), ("qwen3-30b-a3b",), ("gpt2",)])
def test_parameters_can_be_given(base):
    sizes = base or ("--layers", 40, "--hidden", 5120)
    data = json.loads(run(*sizes, "--params", "13e9", "--json").stdout)
    assert data["parameters"] == pytest.approx(13e9, rel=0.01)


def test_padded_shards_are_reported():
    result = run("mixtral-8x7b", "--gpus", 64)
    assert "note: FSDP2 pads dimension 0 to 64 shards, 7.8 times the parameters" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no model; name a preset or a config.json, or give --layers and --hidden"),
        (["nowhere"], "nowhere: No such file or directory; give a config.json, or one of llama-3.2-1b"),
        (["gpt2", "--gpu", "abacus"], "--gpu abacus is unknown; give its memory in GiB, or one of b200"),
        (["gpt2", "--gpu", "0"], "--gpu 0 is unknown"),
        (["gpt2", "--batch", "0"], "--batch 0 is too little; give 1 or more"),
        (["gpt2", "--gpus-per-node", "-8"], "--gpus-per-node -8 is too little; give 1 or more"),
        (["gpt2", "--tp", "3"], "--tp 3 times --cp 1 does not divide --gpus 8; change one"),
        (["gpt2", "--gpus", "12"], "--gpus 12 does not fill nodes of 8; change --gpus-per-node"),
        (
            ["gpt2", "--strategy", "zero"],
            "--strategy zero is unknown; give ddp, grad-op, hsdp, fsdp or, to reshard to N",
        ),
        (["gpt2", "--strategy", "3"], "--strategy 3 is unknown"),
        (["gpt2", "--strategy", "ddp", "--offload"], "--offload needs parameters that FSDP shards; change --strategy"),
        (["gpt2", "--mfu", "40"], "--mfu is 40; give a share of at most 1"),
        (["gpt2", "--plot", "bars.pdf"], "--plot bars.pdf: unknown kind; name a file that ends in .svg or .png"),
        (
            ["gpt2", "--plot", "no/such/bars.svg"],
            "--plot no/such/bars.svg: No such file or directory; choose another place",
        ),
        (
            ["gpt2", "--params", "1e6"],
            "--params 1e+06 is less than the model has without MLPs; lower --layers or --hidden",
        ),
        (["--layers", "2", "--hidden", "64", "--heads", "0"], "num_attention_heads is 0; give a positive whole number"),
    ],
    ids=str,
)
def test_a_wrong_request_is_a_line_and_exit_2(arguments, message):
    result = run(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("plan_memory.py: error: ")
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[1]", "holds no JSON object"),
        ('{"hidden_size": 64}', "vocab_size is null; give a positive whole number"),
        ('{"hidden_size": "64", "vocab_size": 10}', 'hidden_size is "64"; give a positive whole number'),
    ],
)
def test_a_damaged_config_is_named(tmp_path, text, message):
    path = tmp_path / "config.json"
    path.write_text(text)
    result = run(path)
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


# --- the plot --------------------------------------------------------------------------------------------------


def test_the_plot_shows_each_strategy_against_the_gpu(tmp_path):
    path = tmp_path / "memory.svg"
    assert run("llama-3.1-8b", "--gpus", 64, "--plot", path).returncode == 0
    root = ET.parse(path).getroot()
    words = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert {"DDP", "FSDP, no reshard", "FSDP, reshard to 8", "HSDP", "FSDP", "h100: 79.6 GiB"} <= set(words)
    assert {"optimizer state", "activations", "context, fragmentation"} <= set(words)
    bold = [e.text for e in root.iter() if e.get("font-weight") == "bold" and e.get("text-anchor") == "end"]
    assert bold[0] != "DDP"
    assert "FSDP" in bold


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


def test_png_needs_matplotlib_and_says_so(tmp_path):
    path = tmp_path / "memory.png"
    result = run("gpt2", "--plot", path)
    assert result.returncode == 2
    assert result.stderr == (
        f"plan_memory.py: error: --plot {path}: PNG needs matplotlib; install it, or name a file that ends in .svg\n"
    )

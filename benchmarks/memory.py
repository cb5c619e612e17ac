"""Predicted against measured: ``scripts/plan_memory.py`` and what torch itself counts.

    python -m benchmarks.memory [--write] [--case NAME] [--jobs N]

Each case trains a model of transformers for two steps on fake tensors, sharded by FSDP2 over a fake process group,
under ``FSDPMemTracker``. Nothing is allocated, so models of any size are measured on any CPU. ``--write`` renews
memory.md and the plot beside it.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from multiprocessing import Pool
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
import transformers
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, masking_utils

ROOT = Path(__file__).parents[1]
REPORT = Path(__file__).with_suffix(".md")
Json = Any
Model = Plan = argparse.Namespace
MIB = 2**20


def load_planner() -> ModuleType:
    """The script as a module; it is no package because users copy it away."""
    spec = importlib.util.spec_from_file_location("plan_memory", ROOT / "scripts" / "plan_memory.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["plan_memory"] = module
    spec.loader.exec_module(module)
    return module


planner = load_planner()

FIELDS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size")


def config(sizes: str, **more: Json) -> dict[str, Json]:
    """A config.json from its model_type and the sizes in ``FIELDS``, the last that of the vocabulary."""
    kind, *numbers = sizes.split()
    return {"model_type": kind, **dict(zip((*FIELDS, "vocab_size"), map(int, numbers), strict=True)), **more}


def latent(v_head_dim: int = 128) -> dict[str, Json]:
    """The sizes of DeepSeek's attention."""
    return {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": v_head_dim}


LLAMA_1B = config("llama 2048 16 32 8 8192 128256", tie_word_embeddings=True)
LLAMA_8B = config("llama 4096 32 32 8 14336 128256")
MODELS = {
    "llama-3.2-1b": LLAMA_1B,
    "llama-3.1-8b": LLAMA_8B,
    "llama-3.1-70b": config("llama 8192 80 64 8 28672 128256"),
    "llama-3.1-405b": config("llama 16384 126 128 8 53248 128256"),
    "mistral-7b": config("mistral 4096 32 32 8 14336 32768"),
    "mixtral-8x7b": config("mixtral 4096 32 32 8 14336 32000", num_local_experts=8, num_experts_per_tok=2),
    "qwen2.5-7b": config("qwen2 3584 28 28 4 18944 152064"),
    "qwen3-8b": config("qwen3 4096 36 32 8 12288 151936", head_dim=128),
    "qwen3-30b-a3b": config("qwen3_moe 2048 48 32 4 6144 151936", head_dim=128)
    | {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768},
    "gemma-2-9b": config("gemma2 3584 42 16 8 14336 256000", head_dim=256, attn_logit_softcapping=50.0)
    | {"final_logit_softcapping": 30.0},
    "gemma-3-1b": config("gemma3_text 1152 26 4 1 6912 262144", head_dim=256),
    "phi-2": config("phi 2560 32 32 32 10240 51200"),
    "phi-4": config("phi3 5120 40 40 10 17920 100352"),
    "pythia-6.9b": config("gpt_neox 4096 32 32 32 16384 50432"),
    # No dropout: on a CPU attention with dropout takes the quadratic path that a GPU's kernel does not.
    "gpt2": config("gpt2 768 12 12 12 3072 50257", resid_pdrop=0.0, attn_pdrop=0.0, embd_pdrop=0.0),
    "deepseek-v2-lite": config("deepseek_v2 2048 27 16 16 10944 102400", q_lora_rank=None, first_k_dense_replace=1)
    | {"n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6, "moe_intermediate_size": 1408}
    | latent(),
    "deepseek-v3": config("deepseek_v3 7168 61 128 128 18432 129280", q_lora_rank=1536, first_k_dense_replace=3)
    | {"n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 2048}
    | latent(),
}
"""Real models, from their published sizes."""


def short(name: str, layers: int, **more: Json) -> dict[str, Json]:
    """A model with fewer layers."""
    return MODELS[name] | {"num_hidden_layers": layers} | more


@dataclass(frozen=True)
class Case:
    name: str
    config: dict[str, Json]
    settings: dict[str, Json]

    @property
    def model(self) -> Model:
        return planner.read_model(self.config, self.name)

    @property
    def plan(self) -> Plan:
        return planner.make_plan(self.model, self.settings)


def case(name: str, config: dict[str, Json], **settings: Json) -> Case:
    return Case(name, config, settings)


CASES = (
    case("Llama 1B, fp32", LLAMA_1B, precision="fp32", seq=2048),
    case("Llama 1B, bf16", LLAMA_1B, batch=2),
    case("Llama 1B, 64 GPUs", LLAMA_1B, gpus=64),
    case("Llama 1B, pure bf16", LLAMA_1B, precision="bf16"),
    case("Llama 1B, HSDP 8 x 8", LLAMA_1B, gpus=64, strategy="hsdp"),
    case("Llama 1B, no reshard", LLAMA_1B, strategy="grad-op"),
    case("Llama 1B, reshard to 8 of 64", LLAMA_1B, gpus=64, strategy="8"),
    case("Llama 1B, full, 8 loss chunks", LLAMA_1B, batch=4, recompute="full", chunks=8),
    case("Llama 1B, 4 layers, selective", short("llama-3.2-1b", 4), batch=2, recompute="selective"),
    case("Llama 1B, 4 layers, SGD", short("llama-3.2-1b", 4), seq=128, optimizer="sgd"),
    case("Llama 8B, 8 layers, full", short("llama-3.1-8b", 8), seq=8192, gpus=64, recompute="full"),
    case("Llama 8B, 8 layers, 16 chunks", short("llama-3.1-8b", 8), seq=8192, gpus=64, chunks=16),
    case("Llama 8B, 8 layers, tiny batch", short("llama-3.1-8b", 8), seq=128),
    case("Mistral 7B, 4 layers", short("mistral-7b", 4, sliding_window=None)),
    case("Qwen2.5 7B, 4 layers", short("qwen2.5-7b", 4)),
    case("Qwen3 8B, 4 layers, full", short("qwen3-8b", 4), seq=8192, recompute="full"),
    case("Gemma 3 1B, 8 layers, tied", short("gemma-3-1b", 8), seq=2048),
    case("Phi-2, 4 layers", short("phi-2", 4), seq=2048),
    case("Phi-4, 4 layers", short("phi-4", 4)),
    case("GPT-2, tied", MODELS["gpt2"], seq=1024, batch=8),
    case("Pythia 6.9B, 8 layers, 64 GPUs", short("pythia-6.9b", 8), seq=2048, gpus=64),
    case("Mixtral 8x7B, 4 layers", short("mixtral-8x7b", 4)),
    case("Mixtral 8x7B, 4 layers, 64 GPUs", short("mixtral-8x7b", 4), gpus=64),
    case("DeepSeek-V2 Lite, 4 layers, values as wide as queries", short("deepseek-v2-lite", 4) | latent(192), seq=2048),
    case("Qwen3 30B-A3B, 4 layers, 64 GPUs", short("qwen3-30b-a3b", 4), gpus=64),
)
"""The fused attention of a CPU takes no values narrower than queries."""


@dataclass(frozen=True)
class Measured:
    """Bytes of one GPU: shards, what forward leaves for backward, and the most that is live at once."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    peak: float
    moment: str = ""


@contextmanager
def fake_cluster(plan: Plan) -> Iterator[DeviceMesh]:
    """A process group that answers every collective at once, and the mesh, made before tensors are fake."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=plan.gpus)
    try:
        if plan.strategy == "hsdp":
            shape = (plan.gpus // plan.node, plan.node)
            yield init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
        else:
            yield init_device_mesh("cpu", (plan.gpus,))
    finally:
        dist.destroy_process_group()


@contextmanager
def no_mask_from_tracing() -> Iterator[None]:
    """Fake tensors are taken for tracing, in which transformers builds a mask that a real step does without."""
    find = masking_utils.find_packed_sequence_indices
    masking_utils.find_packed_sequence_indices = lambda *_, **__: None
    try:
        yield
    finally:
        masking_utils.find_packed_sequence_indices = find


def matmuls_and_attention() -> object:
    aten = torch.ops.aten
    kept = [aten.mm.default, aten.addmm.default, aten._grouped_mm.default]
    kept += [aten._scaled_dot_product_flash_attention_for_cpu.default]
    return create_selective_checkpoint_contexts(kept)


class ChunkedLoss(nn.Module):
    """A causal language model whose logits exist for a chunk of the tokens at a time."""

    def __init__(self, model: nn.Module, chunks: int) -> None:
        super().__init__()
        self.model = model
        self.chunks = chunks

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        hidden = self.model.model(input_ids=input_ids, use_cache=False).last_hidden_state.flatten(0, 1)
        pairs = zip(hidden.chunk(self.chunks), input_ids.flatten().chunk(self.chunks), strict=True)
        return sum(checkpoint(self.chunk_loss, *pair, use_reentrant=False) for pair in pairs)

    def chunk_loss(self, hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.model.lm_head(hidden).float(), labels)


class FullLoss(nn.Module):
    """A causal language model with the loss of transformers."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=input_ids, labels=input_ids, use_cache=False).loss


def build(config: dict[str, Json], plan: Plan, mesh: DeviceMesh) -> nn.Module:
    """The sharded model, as a training script would make it."""
    stored, compute = ({4: torch.float32, 2: torch.bfloat16}[width] for width in (plan.stored, plan.low))
    settings = {key: value for key, value in config.items() if key != "model_type"}
    hf_config = CONFIG_MAPPING[config["model_type"]](**settings, pad_token_id=None)
    model = AutoModelForCausalLM.from_config(hf_config, attn_implementation="sdpa", dtype=stored)
    model.train()
    policy = MixedPrecisionPolicy(compute, stored) if compute != stored else MixedPrecisionPolicy()
    resharding = {"grad-op": False}.get(plan.strategy, int(plan.strategy) if plan.strategy.isdigit() else True)
    shard = partial(fully_shard, mesh=mesh, mp_policy=policy)
    layers = next(module for module in model.modules() if isinstance(module, nn.ModuleList))
    for index, layer in enumerate(layers):
        if plan.recompute != "none":
            contexts = {"context_fn": matmuls_and_attention} if plan.recompute == "selective" else {}
            layers[index] = checkpoint_wrapper(layer, **contexts)
        with unset_fake_temporarily() if plan.strategy.isdigit() else nullcontext():  # FSDP makes a mesh here
            shard(layers[index], reshard_after_forward=resharding)
    return shard(ChunkedLoss(model, plan.chunks) if plan.chunks > 1 else FullLoss(model))


def build_optimizer(model: nn.Module, plan: Plan) -> torch.optim.Optimizer:
    """The optimizer with the implementation that a GPU takes by default."""
    if plan.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1, foreach=True)
    return torch.optim.AdamW(model.parameters(), foreach=True)


def counted(tracker: FSDPMemTracker, moment: str) -> dict[str, float]:
    """What the tracker counts, in bytes by kind."""
    [snapshot] = tracker.get_tracker_snapshot(moment).values()
    return {str(getattr(kind, "value", kind)): size for kind, size in snapshot.items()}


def state_bytes(optimizer: torch.optim.Optimizer) -> float:
    """The optimizer's state as this rank keeps it.

    The tracker's own figure is not used: it also counts whatever a step allocates.
    """
    tensors = [t for state in optimizer.state.values() for t in state.values() if torch.is_tensor(t) and t.dim()]
    return sum(t._local_tensor.untyped_storage().nbytes() for t in tensors)


def measure(config: dict[str, Json], plan: Plan) -> Measured:
    """A second training step, in which optimizer state exists from the start."""
    with fake_cluster(plan) as mesh, no_mask_from_tracing(), FakeTensorMode():
        model = build(config, plan, mesh)
        optimizer = build_optimizer(model, plan)
        ids = torch.zeros(plan.batch, plan.seq, dtype=torch.int64)
        model(ids).backward()
        for _ in range(2):  # DTensor propagates shapes the first time with fake tensors, which the tracker would count
            optimizer.step()
        optimizer.zero_grad()
        tracker = FSDPMemTracker(model, optimizer)
        tracker.track_inputs((ids,))
        with tracker:
            loss = model(ids)
            activations = counted(tracker, "current")["Activation"]
            loss.backward()
            after = counted(tracker, "current")
            optimizer.step()
        return Measured(
            parameters=after["Sharded Param"],
            gradients=after["Sharded Grad"],
            optimizer=state_bytes(optimizer),
            activations=activations,
            peak=counted(tracker, "peak")["Total"],
        )


def predict(model: Model, plan: Plan) -> Measured:
    """The planner's figures for the same moments, without its allowance.

    The tracker takes what a block is resharded to after forward for activations, so they are added here.
    """
    moments = {name: sizes for name, *sizes in planner.moments(model, plan)}
    [*_, activations, _], last = moments["loss"], plan.stored * plan.shard
    resharded = plan.low * plan.padded / plan.small if plan.small > 1 else 0
    logits = 4 * plan.tokens * model.vocab * (plan.chunks == 1)
    memory = plan.memory.values()
    return Measured(
        parameters=plan.memory["parameters"],
        gradients=last,
        optimizer=plan.memory["optimizer state"],
        activations=activations + logits + resharded,
        peak=sum(memory) - plan.memory["context, fragmentation"],
        moment=plan.moment,
    )


FIGURES = {"parameters": 0.02, "gradients": 0.02, "optimizer": 0.02, "activations": 0.15, "peak": 0.15}
"""How far a prediction may be from what is measured, as a share of it."""


def errors(predicted: Measured, measured: Measured) -> dict[str, float]:
    """Each figure's error as a share of what is measured."""
    return {name: getattr(predicted, name) / getattr(measured, name) - 1 for name in FIGURES}


def compare(each: Case) -> tuple[Measured, Measured]:
    """What is predicted, and what is measured."""
    return predict(each.model, each.plan), measure(each.config, each.plan)


def count_parameters(config: dict[str, Json]) -> int:
    """The parameters of transformers' own model, which has no memory."""
    settings = {key: value for key, value in config.items() if key != "model_type"}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[config["model_type"]](**settings, pad_token_id=None))
    return sum(parameter.numel() for parameter in model.parameters())


def row(name: str, predicted: Measured, measured: Measured) -> str:
    """A line of the table: predicted / measured in MiB, and the error in percent."""
    cells = []
    for figure, error in errors(predicted, measured).items():
        pair = f"{getattr(predicted, figure) / MIB:,.0f} / {getattr(measured, figure) / MIB:,.0f}"
        cells.append(f"{pair} ({error:+.1%})")
    return f"| {name} | {' | '.join(cells)} | {predicted.moment} |"


HEAD = f"""\
# The memory planner against torch

Written by `python -m benchmarks.memory --write` with torch {torch.__version__.partition("+")[0]} and transformers \
{transformers.__version__}.

Each row is the second training step of one model under FSDP2, on fake tensors and a fake process group, counted by
`FSDPMemTracker`; predicted / measured in MiB for one GPU, and the error. The allowance for the CUDA context and
fragmentation, which the tracker cannot see, is left out. The optimizer's figure is the sum of its state tensors: the
tracker's own also counts what a step allocates, and is not used. Not measured here: DDP, tensor and context
parallelism, CPU offload, 8-bit AdamW, Muon, and any real GPU; their figures rest on the sources in the script.

![Memory of each strategy](memory.svg)

## A training step

| model and settings | parameters | gradients | optimizer | activations | peak | peak predicted at |
| --- | --- | --- | --- | --- | --- | --- |
"""
COUNTS = """

## Parameters

Counted by the planner from the sizes in config.json, and by transformers in a model on the meta device.

| model | planner | transformers |
| --- | ---: | ---: |
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--case", default="", help="only cases whose name contains this")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes; default one a core")
    parser.add_argument("--write", action="store_true", help="renew memory.md and memory.svg")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    lines, worst = [], dict.fromkeys(FIGURES, 0.0)
    cases = [each for each in CASES if arguments.case in each.name]
    with Pool(arguments.jobs) as pool:
        for each, (predicted, measured) in zip(cases, pool.imap(compare, cases), strict=True):
            lines.append(row(each.name, predicted, measured))
            print(lines[-1], flush=True)
            worst = {name: max(worst[name], abs(error)) for name, error in errors(predicted, measured).items()}
    summary = ", ".join(f"{name} {error:.1%} (at most {FIGURES[name]:.0%})" for name, error in worst.items())
    print(f"\nLargest errors: {summary}")
    if arguments.write:
        counts = [
            f"| {name} | {planner.read_model(config, name).parameters:,} | {count_parameters(config):,} |"
            for name, config in MODELS.items()
        ]
        report = HEAD + "\n".join(lines) + f"\n\nLargest errors: {summary}." + COUNTS + "\n".join(counts) + "\n"
        REPORT.write_text(report, encoding="utf-8")
        model = planner.read_model(LLAMA_8B, "Llama 3.1 8B")
        planner.draw(REPORT.with_suffix(".svg"), model, planner.make_plan(model, {"seq": 8192, "gpus": 64}))
    return int(any(worst[name] > FIGURES[name] for name in FIGURES))


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Will it fit? The GPU memory of a training step under DDP or FSDP2, when it peaks, and what to change.

    plan_memory.py llama-3.1-8b --gpus 8 --gpu h100 --seq 8192 --batch 2
    plan_memory.py path/to/config.json --gpus 64 --search
    plan_memory.py --params 13e9 --layers 40 --hidden 5120 --gpus 16 --plot memory.svg

MODEL is a preset, a Hugging Face config.json, or the folder that holds one. Figures are for one GPU, in eager mode,
with the modules of transformers; torch.compile and fused norms keep less. Times rest on --mfu and on nominal link
speeds: they put plans in order. Exit status: 0 it fits, 1 nothing fits, 2 wrong usage. Needs Python 3.10 alone.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from html import escape
from importlib.util import find_spec
from itertools import accumulate, combinations, product
from pathlib import Path
from typing import Any

GIB = 2**30
CONTEXT = 1.5 * GIB
"""Assumed: the CUDA context with its kernels, and the buffers of NCCL and cuBLAS."""
FRAGMENTATION = 0.05
"""Assumed: what the caching allocator holds beyond its tensors."""
EFFICIENCY = 0.8
"""Assumed: the share of a link's nominal speed that large collectives reach."""
PCIE, HOST = 25e9, 200e9
"""Bytes a second between GPU and host (PCIe 4.0 x16), and of a node's main memory."""
WIDTHS = {"fp32": (4, 4, 4), "bf16-mixed": (4, 2, 4), "fp16-mixed": (4, 2, 4), "bf16": (2, 2, 2)}
"""Bytes of an element: as parameters are kept, in computation and all-gather, in reduction."""
STRATEGIES = ("ddp", "grad-op", "hsdp", "fsdp")
OPTIMIZERS = ("adamw", "adamw-fused", "adamw-8bit", "sgd", "muon")
CHECKPOINTING = ("none", "selective", "full")
KINDS = {
    "parameters": "sharded parameters",
    "gradients": "sharded gradients",
    "optimizer": "optimizer state",
    "unsharded": "gathered parameters",
    "reduction": "whole gradients, reduce buffers",
    "activations": "activations",
    "logits": "logits and loss",
    "work": "temporaries",
    "allowance": "context, fragmentation",
}
Json = Any
Setting = str | int | bool


class PlanError(Exception):
    """Something in the request is wrong; the message says what, where, and what to do."""


@dataclass(frozen=True)
class Gpu:
    """A GPU by its data sheet: usable GiB, dense bf16 TFLOP/s, GB/s one way within a node and to other nodes."""

    name: str
    memory: float
    tflops: float = 989
    node: float = 450
    network: float = 50


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("b200", 178, 2250, 900),
        Gpu("h200", 140),
        Gpu("h100", 79.6),
        Gpu("a100", 79.3, 312, 300, 25),
        Gpu("a100-40", 39.5, 312, 300, 25),
        Gpu("mi300x", 191, 1307, 448),
        Gpu("l40s", 44.5, 362, 25, 12.5),
        Gpu("v100", 31.7, 125, 150, 12.5),
        Gpu("l4", 22.1, 121, 25, 12.5),
        Gpu("rtx4090", 23.5, 165, 25, 12.5),
    )
}


@dataclass(frozen=True)
class Plan:
    """Settings of a run. ``batch`` counts sequences of ``seq`` tokens in one forward pass of a data-parallel rank."""

    seq: int = 4096
    batch: int = 1
    accumulate: int = 1
    gpus: int = 8
    gpus_per_node: int = 8
    strategy: str = "fsdp"
    precision: str = "bf16-mixed"
    reduce: str = "auto"
    optimizer: str = "adamw"
    checkpointing: str = "none"
    offload: bool = False
    tp: int = 1
    cp: int = 1
    loss_chunks: int = 1
    attention: str = "sdpa"
    host_memory: int = 2000
    """GiB of a node, for offload."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.type == "int" and getattr(self, field.name) < 1:
                raise PlanError(f"{options({field.name: getattr(self, field.name)})} is too little; give 1 or more")
        if self.gpus % (self.tp * self.cp):
            raise PlanError(f"--tp {self.tp} times --cp {self.cp} does not divide --gpus {self.gpus}; change one")
        if self.gpus > self.gpus_per_node and self.gpus % self.gpus_per_node:
            raise PlanError(f"--gpus {self.gpus} does not fill nodes of {self.gpus_per_node}; change --gpus-per-node")
        number = int(self.strategy) if self.strategy.isdigit() else 0
        if self.strategy not in STRATEGIES and (number < 2 or self.ranks % number):
            known = f"{', '.join(STRATEGIES)} or, to reshard to N GPUs, a divisor of {self.ranks} above 1"
            raise PlanError(f"--strategy {self.strategy} is unknown; give {known}")
        if self.offload and self.strategy == "ddp":
            raise PlanError("--offload needs parameters that FSDP shards; change --strategy")

    @property
    def ranks(self) -> int:
        """GPUs over which FSDP may shard; context-parallel ranks are among them."""
        return self.gpus // self.tp

    @property
    def shards(self) -> int:
        """In how many shards parameters, gradients and optimizer state are kept."""
        in_node = math.gcd(self.ranks, max(self.gpus_per_node // self.tp, 1))
        return {"ddp": 1, "hsdp": in_node}.get(self.strategy, self.ranks)

    @property
    def small(self) -> int:
        """In how many shards a block is kept from forward to backward: 1 whole, 0 as at rest."""
        return int(self.strategy) if self.strategy.isdigit() else int(self.strategy in ("ddp", "grad-op"))

    @property
    def tokens(self) -> int:
        """Tokens of one GPU in one forward pass."""
        return -(-self.seq // self.cp) * self.batch

    @property
    def widths(self) -> tuple[int, int, int]:
        """Bytes of an element: parameters, computation, reduction."""
        stored, compute, reduce = WIDTHS[self.precision]
        return stored, compute, {"fp32": 4, "bf16": 2}.get(self.reduce, reduce)


def options(settings: dict[str, Setting]) -> str:
    """Settings as options of the command line."""
    named = {f"--{name.replace('_', '-')}": value for name, value in settings.items()}
    return " ".join(name if value is True else f"{name} {value}" for name, value in named.items())


# --- the model -------------------------------------------------------------------------------------------------

Shape = tuple[int, ...]
Shapes = tuple[Shape, ...]


@dataclass(frozen=True)
class Saved:
    """Elements a token that autograd keeps for backward: in the compute dtype, and in float32."""

    low: float = 0
    full: float = 0

    def __add__(self, other: Saved) -> Saved:
        return Saved(self.low + other.low, self.full + other.full)

    def bytes(self, width: int) -> float:
        """Bytes a token, ``width`` being those of the compute dtype."""
        return self.low * width + self.full * 4


@dataclass(frozen=True)
class Part:
    """Attention or MLP of a block with its norms; counts are elements a token."""

    shapes: Shapes
    input: int
    """Input of the first linear layers, kept for backward; tensor parallelism gathers it on each GPU."""
    saved: Saved
    """What else is kept for backward."""
    products: float
    """Results of matrix products and attention, which selective checkpointing keeps."""
    work: float
    """Gradients of activations that live at once in backward, in the compute dtype."""
    active: int
    """Parameters by which a token is multiplied."""
    q: int = 0
    """Width of all query heads, and below of all key heads; 0 in an MLP."""
    kv: int = 0
    heads: int = 0
    softcap: bool = False


Block = tuple[Part, Part]


@dataclass(frozen=True)
class Model:
    """A decoder: blocks, each a parameter group to FSDP, and the root group: embedding, last norm, head."""

    name: str
    hidden: int
    vocab: int
    blocks: tuple[Block, ...]
    """Equal blocks are one object."""
    root: Shapes
    tied: bool
    norm: Saved
    softcap: bool
    notes: tuple[str, ...]

    @property
    def parameters(self) -> int:
        """All parameters, tied ones counted once."""
        return count(self.root) + sum(count(attention.shapes + mlp.shapes) for attention, mlp in self.blocks)

    @property
    def active(self) -> int:
        """Parameters by which a token is multiplied."""
        return self.hidden * self.vocab + sum(attention.active + mlp.active for attention, mlp in self.blocks)


@dataclass(frozen=True)
class Family:
    """How a family differs from Llama, from its module in transformers 5."""

    norm: str = "rms"
    norms: int = 2
    """In a block: 4 with those after attention and MLP, 1 where attention and MLP share it."""
    parallel: bool = False
    """Attention and MLP read the same input."""
    gated: bool = True
    activation: int = 0
    """Widths of the MLP that an activation function written in Python keeps besides."""
    bias: str = ""
    """``qkv`` or ``all``."""
    fused: bool = False
    """One linear layer makes query, key and value."""
    rotary: str = "all"
    """``part`` of each head, which copies attention's output; ``none``: positions are embedded."""
    qk_norm: bool = False
    latent: bool = False
    tied: bool = False


FAMILIES = {
    **dict.fromkeys(("llama", "mistral", "mixtral", "granite"), Family()),
    **dict.fromkeys(("qwen2", "qwen2_moe"), Family(bias="qkv")),
    **dict.fromkeys(("qwen3", "qwen3_moe"), Family(qk_norm=True)),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3"), Family(latent=True)),
    "smollm3": Family(tied=True),
    "gemma": Family("gemma", tied=True),
    "gemma2": Family("gemma", 4, tied=True),
    "gemma3_text": Family("gemma", 4, qk_norm=True, tied=True),
    "phi3": Family(fused=True, rotary="part"),
    "phi": Family("layer", 1, parallel=True, gated=False, activation=3, bias="all", rotary="part"),
    "gpt_neox": Family("layer", parallel=True, gated=False, bias="all", fused=True, rotary="part"),
    "gpt2": Family("layer", gated=False, activation=3, bias="all", fused=True, rotary="none", tied=True),
}
ALIASES = {
    "hidden_size": ("n_embd",),
    "num_hidden_layers": ("n_layer",),
    "num_attention_heads": ("n_head",),
    "intermediate_size": ("n_inner",),
    "max_position_embeddings": ("n_positions",),
    "num_experts": ("num_local_experts", "n_routed_experts"),
}


class Config:
    """The fields of a Hugging Face config.json; of a multimodal one, its text model's."""

    def __init__(self, data: dict[str, Json], name: str) -> None:
        self.data = {**data, **data.get("text_config", {})}
        self.name = name

    def get(self, name: str, default: Json = None) -> Json:
        """A field under any of its names; the default where it is absent or null."""
        values = (self.data.get(alias) for alias in (name, *ALIASES.get(name, ())))
        return next((value for value in values if value is not None), default)

    def size(self, name: str, default: int | None = None) -> int:
        """A field that counts something.

        Raises:
            PlanError: It is missing, or is not a positive whole number.
        """
        value = self.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise PlanError(f"{self.name}: {name} is {json.dumps(value)}; give a positive whole number")
        return value


def count(shapes: Shapes) -> int:
    """Elements of all shapes."""
    return sum(map(math.prod, shapes))


def matrices(shapes: Shapes) -> Shapes:
    """The shapes that are no vectors."""
    return tuple(shape for shape in shapes if len(shape) > 1)


def linear(out: int, inputs: int, bias: object = False) -> Shapes:
    """Shapes of a linear layer; FSDP2 shards the first dimension."""
    return ((out, inputs), (out,)) if bias else ((out, inputs),)


def norm(family: Family, width: int) -> tuple[Shapes, Saved]:
    """A norm's shapes, and what it keeps besides its output: a float32 copy of the input, the normalised input.

    Source: ``LlamaRMSNorm`` and ``Gemma3RMSNorm`` in transformers; ``torch.nn.LayerNorm``, which keeps its input.
    """
    saved = {"rms": Saved(width, width), "gemma": Saved(0, 2 * width), "layer": Saved(width)}
    return ((width,),) * (2 if family.norm == "layer" else 1), saved[family.norm]


def norms(family: Family, hidden: int, *, first: bool) -> tuple[Shapes, Saved]:
    """The norms around attention (``first``) or the MLP."""
    shapes, saved = norm(family, hidden)
    if family.norms == 4:
        return shapes * 2, saved + saved
    if first:
        return shapes, saved
    return shapes * (family.norms - 1), Saved() if family.parallel else saved


def attention(config: Config, family: Family) -> Part:
    """Attention that keeps query, key, value, output and log-sum-exp (FlashAttention-2, arXiv:2307.08691, 3.2.2)."""
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    head = config.size("head_dim", max(hidden // heads, 1))
    q, kv = heads * head, config.size("num_key_value_heads", heads) * head
    bias = family.bias or config.get("attention_bias", False)
    rows = (q + 2 * kv,) if family.fused else (q, kv, kv)
    shapes = sum((linear(row, hidden, bias) for row in rows), ()) + linear(hidden, q, bias and bias != "qkv")
    around, saved = norms(family, hidden, first=True)
    saved += Saved(2 * q + 2 * kv, heads)
    if family.fused and family.rotary != "none":  # the value is a view that keeps the whole product alive
        saved += Saved(q + kv)
    if family.rotary == "part":
        saved += Saved(q)
    if family.qk_norm:
        saved += norm(family, q + kv)[1]
        around += ((head,), (head,))
    return Part(
        shapes=shapes + around,
        input=hidden,
        saved=saved,
        products=2 * q + 2 * kv + hidden,
        work=2 * hidden + 3 * q + 2 * kv,
        active=count(matrices(shapes)),
        q=q,
        kv=kv,
        heads=heads,
        softcap=bool(config.get("attn_logit_softcapping")),
    )


def latent_attention(config: Config, family: Family) -> Part:
    """DeepSeek's multi-head latent attention (arXiv:2405.04434, 2.1), keys and values unpacked as in training."""
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    rope, rank = config.size("qk_rope_head_dim"), config.size("kv_lora_rank")
    nope, q_rank, bias = config.size("qk_nope_head_dim"), config.get("q_lora_rank"), config.get("attention_bias")
    qk, value = heads * (nope + rope), heads * config.size("v_head_dim")
    query = linear(q_rank, hidden, bias) + linear(qk, q_rank) + ((q_rank,),) if q_rank else linear(qk, hidden)
    shapes = query + linear(rank + rope, hidden, bias) + ((rank,),)
    shapes += linear(heads * nope + value, rank) + linear(hidden, value, bias)
    around, saved = norms(family, hidden, first=True)
    latent = rank + (q_rank or 0)
    return Part(
        shapes=shapes + around,
        input=hidden,
        saved=saved + norm(family, latent)[1] + Saved(latent + 2 * qk + 3 * value, heads),
        products=latent + rope + qk + heads * nope + 2 * value + hidden,
        work=2 * hidden + 3 * qk + 2 * value,
        active=count(matrices(shapes)),
        q=(qk + value) // 2,
        kv=(qk + value) // 2,
        heads=heads,
    )


def dense_mlp(config: Config, family: Family) -> Part:
    """A dense MLP; it keeps the input of the activation, both factors of the gate, the input of the last product."""
    hidden, ways = config.size("hidden_size"), 2 if family.gated else 1
    width = config.size("intermediate_size", 4 * hidden)
    bias = not family.gated or config.get("mlp_bias", False)
    first = linear(2 * width, hidden) if family.fused and family.gated else linear(width, hidden, bias) * ways
    shapes = first + linear(hidden, width, bias)
    around, saved = norms(family, hidden, first=False)
    return Part(
        shapes=shapes + around,
        input=hidden if family.norms > 1 else 0,
        saved=saved + Saved((2 * ways + family.activation) * width),
        products=ways * width + hidden,
        work=hidden + (ways + family.activation) * width,
        active=count(matrices(shapes)),
    )


def experts_mlp(config: Config, family: Family) -> Part:
    """Routed experts, stacked in two parameters as in transformers 5, and shared ones beside them."""
    hidden, experts, chosen = (config.size(n) for n in ("hidden_size", "num_experts", "num_experts_per_tok"))
    width = config.size("moe_intermediate_size", config.get("intermediate_size"))
    gate = config.get("shared_expert_intermediate_size")
    shared = gate or config.get("n_shared_experts", 0) * width
    routed: Shapes = ((experts, 2 * width, hidden), (experts, hidden, width))
    beside = linear(experts, hidden)
    if shared:
        beside += linear(shared, hidden) * 2 + linear(hidden, shared) + (linear(1, hidden) if gate else ())
    around, saved = norms(family, hidden, first=False)
    return Part(
        shapes=routed + beside + around,
        input=hidden,
        saved=saved + Saved(chosen * (2 * hidden + 4 * width) + 4 * shared, experts),
        products=chosen * (2 * width + hidden) + 2 * shared + hidden * bool(shared),
        work=(chosen + 1) * hidden + 3 * chosen * width + 2 * shared,
        active=count(routed) * chosen // experts + count(beside),
    )


def is_sparse(config: Config, layer: int) -> bool:
    """Whether a block's MLP is a mixture of experts."""
    if config.get("num_experts") is None or layer < config.get("first_k_dense_replace", 0):
        return False
    return layer not in config.get("mlp_only_layers", ()) and (layer + 1) % config.get("decoder_sparse_step", 1) == 0


def read_model(data: dict[str, Json], name: str) -> Model:
    """A model from the fields of a config.json.

    Raises:
        PlanError: A field that is needed is missing or wrong.
    """
    config = Config(data, name)
    kind = config.get("model_type", "llama")
    family = FAMILIES.get(kind, Family())
    hidden, vocab = config.size("hidden_size"), config.size("vocab_size")
    heed = (latent_attention if family.latent else attention)(config, family)
    layers = [is_sparse(config, layer) for layer in range(config.size("num_hidden_layers"))]
    makers = {sparse: experts_mlp if sparse else dense_mlp for sparse in layers}
    blocks = {sparse: (heed, make(config, family)) for sparse, make in makers.items()}
    shapes, saved = norm(family, hidden)
    tied = bool(config.get("tie_word_embeddings", family.tied))
    positions = linear(config.size("max_position_embeddings"), hidden) if family.rotary == "none" else ()
    notes = []
    if kind not in FAMILIES:
        notes.append(f"model_type {kind!r} is unknown, planned as a Llama of its sizes; correct with --params")
    if config.get("sliding_window") and config.get("use_sliding_window", True):
        notes.append("sliding windows are planned as in FlashAttention; sdpa builds a mask and repeats keys for them")
    return Model(
        name=name,
        hidden=hidden,
        vocab=vocab,
        blocks=tuple(blocks[sparse] for sparse in layers),
        root=linear(vocab, hidden) + positions + shapes + (() if tied else linear(vocab, hidden, kind == "phi")),
        tied=tied,
        norm=saved,
        softcap=bool(config.get("final_logit_softcapping")),
        notes=tuple(notes),
    )


def fit_parameters(data: dict[str, Json], parameters: float, name: str) -> Model:
    """A model whose MLPs are as wide as the number of parameters allows, which grows evenly with the width.

    Raises:
        PlanError: The rest of the model has more.
    """
    field = "moe_intermediate_size" if "moe_intermediate_size" in data else "intermediate_size"
    one, two = (read_model({**data, field: width}, name).parameters for width in (1, 2))
    width = 1 + int(parameters - one) // (two - one)
    if width < 1:
        raise PlanError(
            f"--params {parameters:.3g} is less than the model has without MLPs; lower --layers or --hidden"
        )
    return read_model({**data, field: width}, name)


SIZES = {
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "ffn": "intermediate_size",
    "vocab": "vocab_size",
}
"""Options that describe a model, and their fields in config.json."""


def config(sizes: str, **more: Json) -> dict[str, Json]:
    """A config.json from its model_type and sizes, in the order of ``SIZES``."""
    kind, *numbers = sizes.split()
    return {"model_type": kind, **dict(zip(SIZES.values(), map(int, numbers), strict=True)), **more}


PRESETS = {
    "llama-3.2-1b": config("llama 2048 16 32 8 8192 128256", tie_word_embeddings=True),
    "llama-3.1-8b": config("llama 4096 32 32 8 14336 128256"),
    "llama-3.1-70b": config("llama 8192 80 64 8 28672 128256"),
    "llama-3.1-405b": config("llama 16384 126 128 8 53248 128256"),
    "mistral-7b": config("mistral 4096 32 32 8 14336 32768"),
    "mixtral-8x7b": config("mixtral 4096 32 32 8 14336 32000", num_local_experts=8, num_experts_per_tok=2),
    "qwen2.5-7b": config("qwen2 3584 28 28 4 18944 152064"),
    "qwen3-8b": config("qwen3 4096 36 32 8 12288 151936", head_dim=128),
    "qwen3-30b-a3b": config(
        "qwen3_moe 2048 48 32 4 6144 151936",
        head_dim=128, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768,
    ),
    "gemma-3-1b": config("gemma3_text 1152 26 4 1 6912 262144", head_dim=256),
    "phi-4": config("phi3 5120 40 40 10 17920 100352"),
    "gpt2": config("gpt2 768 12 12 12 3072 50257", max_position_embeddings=1024),
    "deepseek-v3": config(
        "deepseek_v3 7168 61 128 128 18432 129280",
        q_lora_rank=1536, kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128,
        n_routed_experts=256, n_shared_experts=1, num_experts_per_tok=8, moe_intermediate_size=2048,
        first_k_dense_replace=3,
    ),
}  # fmt: skip


# --- memory ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """Parameters that FSDP gathers and reduces together, in elements of one tensor-parallel rank."""

    whole: int
    shard: int
    gathered: int
    """``shard`` times the number of shards: FSDP2 pads the first dimension of each parameter."""


@cache
def group(shapes: Shapes, shards: int, tp: int) -> Group:
    """Cut parameters into shards; tensor parallelism cuts matrices only.

    Source: ``FSDPParam._init_sharded_param`` in torch/distributed/fsdp/_fully_shard.
    """
    local = [(-(-shape[0] // tp), *shape[1:]) if len(shape) > 1 else shape for shape in shapes]
    shard = sum(-(-shape[0] // shards) * math.prod(shape[1:]) for shape in local)
    return Group(sum(map(math.prod, local)), shard, shard * shards)


def groups(model: Model, plan: Plan) -> list[Group]:
    """The groups of a model: its blocks in order, then the root."""
    shapes = [*(attention.shapes + mlp.shapes for attention, mlp in model.blocks), model.root]
    return [group(each, plan.shards, plan.tp) for each in shapes]


def scores(part: Part, plan: Plan) -> Saved:
    """What attention without a fused kernel keeps besides, growing with the square of the sequence.

    Source: ``eager_attention_forward`` in transformers: the softmax in float32 and, cast, in the compute dtype, the
    capped scores of Gemma 2 (it has no other attention), keys and values repeated for each query head.
    """
    if not part.heads or (plan.attention == "sdpa" and not part.softcap):
        return Saved()
    matrix = part.heads * plan.seq
    return Saved(matrix * ((plan.widths[1] < 4) + part.softcap) + 2 * (part.q - part.kv), matrix)


def saved_bytes(part: Part, plan: Plan) -> float:
    """What attention or MLP keeps for backward; sequence parallelism splits all but the gathered input.

    Source: the count of Korthikanti et al., arXiv:2205.05198, section 4, for the operators of transformers.
    """
    width = plan.widths[1]
    return plan.tokens * (part.input * width + (part.saved + scores(part, plan)).bytes(width) / plan.tp)


def kept_bytes(block: Block, plan: Plan) -> float:
    """What a block keeps from forward to backward; under checkpointing its input, or its input and its products."""
    if plan.checkpointing == "none":
        return sum(saved_bytes(part, plan) for part in block)
    products = sum(part.products for part in block) if plan.checkpointing == "selective" else 0
    return plan.tokens * (block[0].input + products) * plan.widths[1] / plan.tp


def optimizer_bytes(model: Model, plan: Plan) -> tuple[float, float]:
    """The optimizer's state, and what its step allocates for a moment.

    Source: ``torch.optim``: AdamW keeps two tensors in the parameters' dtype, and its default implementation on a GPU
    allocates a third; SGD keeps its momentum, and allocates a tensor for weight decay; Muon keeps one for a block's
    matrices, AdamW's two for the rest, and whole matrices in bf16 while it makes one orthogonal. 8-bit AdamW: two
    bytes, and two float32 scales for 256 of them (arXiv:2110.02861).
    """
    total, width = sum(each.shard for each in groups(model, plan)), plan.widths[0]
    if plan.optimizer == "adamw-8bit":
        return total * (2 + 8 / 256), 0
    if plan.optimizer == "sgd":
        return total * width, total * width
    if plan.optimizer == "muon":
        inner = [matrices(attention.shapes + mlp.shapes) for attention, mlp in model.blocks]
        largest = max(math.prod(shape[-2:]) for shapes in inner for shape in shapes)
        orthogonal = sum(group(shapes, plan.shards, plan.tp).shard for shapes in inner)
        return (2 * total - orthogonal) * width, 4 * 2 * largest
    return 2 * total * width, 0 if plan.optimizer == "adamw-fused" else total * width


Memory = dict[str, float]
"""Bytes by kind."""
Moment = tuple[str, Memory]


class Step:
    """A training step as the moments at which memory can peak.

    Source: ``FSDPParamGroup`` in torch/distributed/fsdp/_fully_shard. Forward holds a block, the buffer it was gathered
    into, and the root, which stays whole until the end of backward. Backward gathers one block ahead; the input of a
    block's reduce-scatter lives until the next one's. The project's benchmarks compare it with ``FSDPMemTracker``.
    """

    def __init__(self, model: Model, plan: Plan) -> None:
        self.model, self.plan = model, plan
        self.stored, self.low, self.reduce = plan.widths
        self.ddp, self.single = plan.strategy == "ddp", plan.shards == 1
        *self.groups, self.root = groups(model, plan)
        self.total = self.root.shard + sum(each.shard for each in self.groups)
        self.on_gpu = 0 if plan.offload else self.stored
        kept = {key: kept_bytes(block, plan) for key, block in {id(block): block for block in model.blocks}.items()}
        self.kept = list(accumulate((kept[id(block)] for block in model.blocks), initial=0.0))
        ahead = accumulate((each.shard for each in reversed(self.groups)), initial=0)
        self.reduced = list(reversed(list(ahead)))
        self.state, self.step_work = optimizer_bytes(model, plan)
        self.base = {"parameters": self.on_gpu * self.total, "optimizer": 0 if plan.offload else self.state}
        self.accumulated = self.on_gpu * self.total if plan.accumulate > 1 or self.ddp else 0
        self.head_grad = self.low * group(linear(model.vocab, model.hidden), 1, plan.tp).whole

    def moments(self) -> Iterator[Moment]:
        """All moments in order."""
        for block in self.ends():
            yield from self.forward(block)
        yield from self.loss()
        for block in reversed(self.ends()):
            yield from self.backward(block)
        yield from () if self.ddp else self.root_backward()
        buckets = self.stored * self.total if self.ddp else 0
        work = 0 if self.plan.offload else self.step_work
        yield self.at("optimizer step", gradients=self.on_gpu * self.total, reduction=buckets, work=work)

    def at(self, name: str, **kinds: float) -> Moment:
        """A moment: what is always there, and what is there now."""
        return name, dict.fromkeys(KINDS, 0.0) | self.base | {"gradients": self.accumulated} | kinds

    def ends(self) -> list[int]:
        """Blocks at both ends of each run of equal ones; in between, memory changes by the same amount a block."""
        blocks, last = self.model.blocks, len(self.model.blocks) - 1
        edges = [-1, *(i for i in range(last) if blocks[i] is not blocks[i + 1]), last]
        return sorted({i for edge in edges for i in range(edge - 1, edge + 3) if 0 <= i <= last})

    def gathered(self, block: int, ahead: int | None = None) -> float:
        """Bytes of whole parameters while a block runs, with the buffer into which another was or will be gathered."""
        if self.single:  # nothing is gathered, but cast: by autocast, which keeps all, or by FSDP
            live = self.groups if self.ddp else self.groups[block : block + 1]
            return self.low * (self.root.whole + sum(each.whole for each in live)) * (self.low < self.stored)
        whole = self.root.gathered + self.groups[block].gathered
        whole += self.groups[ahead].gathered if ahead is not None else 0
        before = sum(each.gathered for each in self.groups[:block])
        return self.low * (whole + (before / self.plan.small if self.plan.small else 0))

    def forward(self, block: int) -> Iterator[Moment]:
        """A block's forward: its parameters copied out of their buffer, the last one still there; and its end.

        At the end there are the residual stream and its sum with the MLP's output.
        """
        saved = sum(saved_bytes(part, self.plan) for part in self.model.blocks[block])
        stream = self.plan.tokens * self.model.hidden * self.low / self.plan.tp
        whole, kept, name = self.gathered(block, block), self.kept[block], f"forward, block {block}"
        if not self.single:
            last = self.groups[block - 1] if block else self.root
            both = whole + self.low * last.gathered
            yield self.at(f"{name}, gathering", unsharded=both, activations=kept, work=stream)
        yield self.at(name, unsharded=whole, activations=kept + saved, work=2 * stream)

    def loss(self) -> Iterator[Moment]:
        """The loss over float32 logits, whole or in chunks that are recomputed in backward, and the head's backward.

        Source: ``ForCausalLMLoss`` in transformers. Forward: logits, their float32 copy, and its log-softmax, which
        stays. Backward: the log-softmax and two gradients in float32.
        """
        plan, model, low = self.plan, self.model, self.low
        stream = plan.tokens * model.hidden * low
        activations = self.kept[-1] + plan.tokens * model.norm.bytes(low) / plan.tp + stream
        now = {"unsharded": self.gathered(len(self.groups) - 1), "activations": activations}
        logits = plan.tokens * model.vocab / plan.tp / plan.loss_chunks
        capped = low * logits * model.softcap
        chunked = plan.loss_chunks > 1
        ready = self.head_grad * chunked
        yield self.at("loss, forward", **now, logits=logits * (8 + low * (low < 4)) + capped)
        yield self.at("loss, backward", **now, logits=12 * logits + capped, reduction=ready, work=stream * chunked)
        yield self.at("head, backward", **now, logits=low * logits, reduction=self.head_grad + ready, work=stream)

    def backward(self, block: int) -> Iterator[Moment]:
        """A block's backward: gathered again, through its MLP, through attention, its gradients complete, reduced."""
        plan, (attention, mlp), own = self.plan, self.model.blocks[block], self.groups[block]
        kept = self.kept[block] if plan.checkpointing == "none" else self.kept[block + 1]
        done, saved = self.reduced[block + 1], saved_bytes(attention, plan)
        buffers = self.buffers(done)
        waiting = buffers + sum(self.reduce_input(each) for each in self.groups[block + 1 : block + 2])
        whole = self.gathered(block, block - 1 if block and plan.small != 1 else None)
        alone = whole if self.single else whole - self.low * own.gathered
        grads, mlp_grads = (0 if self.ddp else self.low * g.whole for g in (own, group(mlp.shapes, 1, plan.tp)))
        first = 0 if self.ddp else self.low * max(map(math.prod, mlp.shapes)) / plan.tp
        token = plan.tokens * self.low / plan.tp
        stream, unfused = token * self.model.hidden, 2 * plan.tokens * scores(attention, plan).bytes(self.low) / plan.tp
        rows = [
            ("MLP", whole, waiting + first, kept + saved + saved_bytes(mlp, plan), token * mlp.work),
            ("attention", whole, waiting + mlp_grads, kept + saved, token * attention.work + unfused),
        ]
        if not self.single and plan.small != 1:
            rows.insert(0, ("gathering", self.gathered(block, block), waiting, self.kept[block + 1], stream))
        if not self.ddp:
            rows.append(("complete", whole, waiting + grads, kept, stream))
            rows.append(("reduce-scatter", alone, buffers + grads + self.reduce_input(own), kept, stream))
        gradients = self.accumulated or self.on_gpu * done
        for name, *sizes in rows:
            now = dict(zip(("unsharded", "reduction", "activations", "work"), sizes, strict=True))
            yield self.at(f"backward, block {block}, {name}", gradients=gradients, **now)

    def reduce_input(self, each: Group) -> float:
        """The input of a group's reduce-scatter."""
        return 0 if self.single else self.reduce * each.gathered

    def buffers(self, done: int) -> float:
        """Gradient buffers while blocks run backward: DDP's buckets, or the head's gradient and HSDP's all-reduces.

        The latter live until the end of backward unless they are the gradients.
        """
        if self.ddp:
            return self.stored * self.total
        replicated = self.plan.strategy == "hsdp" and self.plan.ranks > self.plan.shards
        return self.head_grad + self.reduce * done * (replicated and self.reduce != self.stored)

    def root_backward(self) -> Iterator[Moment]:
        """The embedding's gradient, a tied head's and their sum at once; then the root's reduction."""
        done = self.reduced[0]
        gradients = self.accumulated or self.on_gpu * done
        grads = self.low * self.root.whole + self.buffers(done) - self.head_grad
        summed = grads + 2 * self.head_grad * self.model.tied + self.reduce_input(self.groups[0])
        gathered = 0 if self.single else self.low * self.root.gathered
        yield self.at("backward, embedding", gradients=gradients, unsharded=gathered, reduction=summed)
        copied = grads + self.reduce_input(self.root)
        yield self.at("backward, root reduce-scatter", gradients=gradients, reduction=copied)


@dataclass(frozen=True)
class Forecast:
    """What a plan needs of a GPU, of a node's host memory, and of time."""

    plan: Plan
    moment: str
    memory: Memory
    """Bytes by kind at the peak, with the allowance."""
    host: float
    traffic: dict[str, float]
    """Bytes that a GPU sends in a step, by what sends them."""
    seconds: float
    compute: float
    """Seconds of computation in a step, under which FSDP's traffic hides."""
    tokens_per_second: float
    """Of all GPUs together."""
    notes: tuple[str, ...]

    @property
    def total(self) -> float:
        """Bytes of GPU memory."""
        return sum(self.memory.values())

    def fits(self, gpu: Gpu) -> bool:
        """Whether the GPU's memory is enough, and the host's."""
        return self.total <= gpu.memory * GIB and self.host <= self.plan.host_memory * GIB


def forecast(model: Model, plan: Plan, gpu: Gpu, mfu: float) -> Forecast:
    """The peak of a step and an estimate of its time.

    Args:
        model: The model.
        plan: The settings of the run.
        gpu: The GPU; its memory plays no part.
        mfu: The share of the GPU's FLOP/s that computation reaches.
    """
    step = Step(model, plan)
    moment, memory = max(step.moments(), key=lambda moment: sum(moment[1].values()))
    memory["allowance"] = CONTEXT + FRAGMENTATION * sum(memory.values())
    state = 2 * step.stored * step.total + step.state
    host = state * min(plan.gpus, plan.gpus_per_node) if plan.offload else 0
    sent = traffic(step)
    times = {name: size / link_speed(name, plan, gpu) for name, size in sent.items()}
    exposed = sum(time for name, time in times.items() if name in EXPOSED)
    flops = plan.accumulate * plan.tokens * flops_per_token(model, plan) / plan.tp
    compute = flops / (gpu.tflops * 1e12 * mfu * (0.5 if step.low == 4 else 1))
    seconds = max(compute, sum(times.values()) - exposed) + exposed + 3 * host / HOST
    tokens = plan.tokens * plan.ranks * plan.accumulate
    padding = plan.shards * step.total / (step.root.whole + sum(each.whole for each in step.groups))
    notes = [] if padding < 1.05 else [PADDED.format(plan.shards, padding)]
    notes = (*model.notes, *notes)
    return Forecast(plan, moment, memory, host, sent, seconds, compute, tokens / seconds, notes)


PADDED = "FSDP2 pads dimension 0 to {} shards, {:.1f} times the parameters: use fewer shards or another dimension"


# --- time ------------------------------------------------------------------------------------------------------

EXPOSED = ("tensor parallel", "context parallel")
"""Traffic for which computation waits."""


def flops_per_token(model: Model, plan: Plan) -> float:
    """Floating-point operations of a token: six a parameter, and the causal half of attention.

    Source: PaLM, arXiv:2204.02311, appendix B. Checkpointing in full repeats the forward, a third more.
    """
    attention = sum(6 * plan.seq * block[0].q for block in model.blocks)
    return (6 * model.active + attention) * (4 / 3 if plan.checkpointing == "full" else 1)


def traffic(step: Step) -> dict[str, float]:
    """Bytes that a GPU sends in a step; rings send (n - 1) / n of a gathered tensor, all-reduce twice that.

    Source: ZeRO, arXiv:1910.02054, section 7; nccl-tests, doc/PERFORMANCE.md. Tensor with sequence parallelism gathers
    and scatters the residual stream four times a block in forward and in backward (arXiv:2205.05198, section 4).
    """
    plan, model, n = step.plan, step.model, step.plan.shards
    gathered, ring, replicas = n * step.total, (n - 1) / n, plan.ranks // n
    again = (plan.small - 1) / plan.small if plan.small else ring
    stream = plan.tokens * model.hidden * step.low
    keys = plan.tokens * sum(2 * block[0].kv for block in model.blocks) * step.low / plan.tp
    sizes = {
        "all-gather": step.low * gathered * ring,
        "all-gather in backward": step.low * gathered * again,
        "reduce-scatter": step.reduce * gathered * ring,
        "all-reduce": step.reduce * step.total * 2 * (replicas - 1) / replicas,
        "host": 3 * step.stored * step.total * plan.offload,
        "tensor parallel": 8 * len(model.blocks) * stream * (plan.tp - 1) / plan.tp,
        "context parallel": 3 * keys * (plan.cp - 1),
    }
    often = {"all-reduce": 1} if step.ddp else {}
    return {name: size * often.get(name, plan.accumulate) for name, size in sizes.items() if size}


def link_speed(name: str, plan: Plan, gpu: Gpu) -> float:
    """Bytes a second of what a kind of traffic crosses; tensor parallelism takes the nearest GPUs."""
    if name == "host":
        return PCIE
    again = plan.small if plan.small > 1 else plan.shards
    near = {
        "all-gather in backward": again,
        "tensor parallel": 1,
        "context parallel": plan.cp,
        "all-reduce": plan.ranks,
    }
    span = near.get(name, plan.shards) * plan.tp
    return EFFICIENCY * 1e9 * (gpu.node if span <= plan.gpus_per_node else gpu.network)


# --- choices ---------------------------------------------------------------------------------------------------

Remedy = tuple[dict[str, Setting], Forecast]
"""Changed settings, and what comes of them."""


def try_plan(plan: Plan, **changes: Setting) -> Plan | None:
    """The plan with changes, or None where they contradict one another."""
    try:
        return replace(plan, **changes)
    except PlanError:
        return None


def changes(plan: Plan) -> list[dict[str, Setting]]:
    """What can be done about a plan that does not fit, the cheapest first."""
    rest = STRATEGIES[STRATEGIES.index(plan.strategy) + 1 :] if plan.strategy in STRATEGIES else ("fsdp",)
    stronger = CHECKPOINTING[CHECKPOINTING.index(plan.checkpointing) + 1 :]
    halves = [plan.batch >> i for i in range(1, plan.batch.bit_length()) if plan.batch % (1 << i) == 0]
    found: list[dict[str, Setting]] = [
        {"optimizer": "adamw-fused"},
        {"loss_chunks": max(8, plan.loss_chunks)},
        {"attention": "sdpa"},
        *({"strategy": name} for name in reversed(rest)),
        {"precision": "bf16-mixed" if plan.precision == "fp32" else plan.precision},
        *({"checkpointing": name} for name in stronger),
        *({"batch": half, "accumulate": plan.accumulate * plan.batch // half} for half in halves),
        {"optimizer": "adamw-8bit"},
        *({"tp": n} for n in (2, 4, 8) if plan.tp < n <= min(plan.gpus, plan.gpus_per_node)),
        *({"cp": n} for n in (2, 4, 8) if n > plan.cp),
        {"offload": True},
        *({"gpus": n * max(plan.gpus, plan.gpus_per_node)} for n in (2, 4, 8, 16)),
    ]
    if not plan.optimizer.startswith("adamw"):
        found = [change for change in found if "optimizer" not in change]
    return [change for change in found if change.items() - asdict(plan).items()]


def remedies(model: Model, plan: Plan, gpu: Gpu, mfu: float, most: int = 4) -> list[Remedy]:
    """The fewest changes, up to three, that make a plan fit; first those that leave a GPU fastest."""
    for number in (1, 2, 3):
        found: list[Remedy] = []
        for combination in combinations(changes(plan), number):
            merged = {name: value for change in combination for name, value in change.items()}
            changed = try_plan(plan, **merged) if len(merged) == sum(map(len, combination)) else None
            result = forecast(model, changed, gpu, mfu) if changed else None
            if result and result.fits(gpu):
                found.append((merged, result))
        if found:
            return sorted(found, key=lambda remedy: -remedy[1].tokens_per_second / remedy[1].plan.gpus)[:most]
    return []


def search(model: Model, plan: Plan, gpu: Gpu, mfu: float, most: int = 10) -> list[Forecast]:
    """The plans for a cluster that fit, the fastest first, of those that differ in the batch alone the best.

    Offload is tried when nothing else fits. Precision, optimizer and attention stay as they are.
    """
    several = ("hsdp", str(plan.gpus_per_node)) if plan.gpus > plan.gpus_per_node else ()
    powers, strategies = (1, 2, 4, 8), ("ddp", "grad-op", *several, "fsdp") if plan.gpus > 1 else ("ddp", "fsdp")
    degrees = [n for n in powers if n <= plan.gpus_per_node]
    for offload in (False, True):
        found: list[Forecast] = []
        for strategy, checkpointing, tp, cp in product(strategies, CHECKPOINTING, degrees, powers):
            chosen = {"strategy": strategy, "checkpointing": checkpointing, "tp": tp, "cp": cp, "offload": offload}
            batches = product((*powers, 16, 32), {plan.loss_chunks, 8})
            plans = [try_plan(plan, **chosen, batch=batch, loss_chunks=chunks) for batch, chunks in batches]
            results = [forecast(model, candidate, gpu, mfu) for candidate in plans if candidate]
            found += sorted((result for result in results if result.fits(gpu)), key=best_first)[:1]
        if found:
            return sorted(found, key=best_first)[:most]
    return []


def best_first(result: Forecast) -> tuple[float, int, float]:
    """The fastest first; of equally fast ones those with a whole loss, and then those that need less memory."""
    return -result.tokens_per_second, result.plan.loss_chunks, result.total


# --- what people see -------------------------------------------------------------------------------------------


def gib(size: float) -> str:
    """Bytes in GiB, to three digits."""
    return f"{size / GIB:,.{2 if size < 10 * GIB else 1 if size < 1000 * GIB else 0}f}"


def described(plan: Plan, *hidden: str) -> str:
    """The settings that always matter, and those that differ from the defaults."""
    always, hidden = ("strategy", "seq", "batch"), ("gpus", "gpus_per_node", *hidden)
    values = {field.name: getattr(plan, field.name) for field in fields(plan) if field.name not in hidden}
    return options({name: value for name, value in values.items() if name in always or value != getattr(Plan, name)})


def heading(model: Model, plan: Plan, gpu: Gpu, notes: tuple[str, ...]) -> str:
    """Model and cluster, and what is to be known about them."""
    parameters = f"{model.parameters / 1e9:,.2f} B parameters"
    first = f"{model.name}, {parameters}, on {plan.gpus} x {gpu.name} ({gpu.memory:g} GiB)"
    return "\n".join([first, *(f"note: {note}" for note in notes)])


def table(title: str, head: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Print a table, numbers in all columns but the first and the last; on a terminal through rich if that is there."""
    if sys.stdout.isatty() and find_spec("rich"):
        from rich import console, table  # noqa: PLC0415 - optional

        pretty = table.Table(title=title, title_justify="left", box=None)
        for index, name in enumerate(head):
            pretty.add_column(name, justify="left" if index in (0, len(head) - 1) else "right")
        for row in rows:
            pretty.add_row(*row)
        console.Console().print(pretty)
        return
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    print(title)
    for first, *middle, last in (head, *rows):
        numbers = [f"{cell:>{width}}" for cell, width in zip(middle, widths[1:-1], strict=True)]
        print("  ".join(["", f"{first:<{widths[0]}}", *numbers, last]).rstrip())


def show_plan(result: Forecast, model: Model, gpu: Gpu, ways: list[Remedy]) -> None:
    """Print a plan's memory by kind, whether it fits and what would make it fit, and its time."""
    spare = gpu.memory * GIB - result.total
    verdict = f"fits, {gib(spare)} GiB to spare" if spare >= 0 else f"does NOT fit, {gib(-spare)} GiB too much"
    enough = "fits" if result.host <= result.plan.host_memory * GIB else "does NOT fit"
    sizes = [(KINDS[kind], size) for kind, size in result.memory.items() if size]
    rows = [(label, gib(size), "#" * round(40 * size / result.total)) for label, size in sizes]
    print(heading(model, result.plan, gpu, result.notes), described(result.plan), "", sep="\n")
    table(f"A GPU at its peak: {result.moment}", ("", "GiB", ""), [*rows, ("total", gib(result.total), verdict)])
    if result.host:
        print(f"host memory of a node: {gib(result.host)} of {result.plan.host_memory} GiB, {enough}")
    sent = ", ".join(f"{name} {size / 1e9:.3g}" for name, size in result.traffic.items()) or "nothing"
    print(f"\nA step: about {result.seconds:.3g} s, of which computation {result.compute:.3g} s;", end=" ")
    print(f"{result.tokens_per_second:,.0f} tokens/s")
    print(f"GB that a GPU sends in it: {sent}")
    if not result.fits(gpu):
        rows = [(options(change), gib(r.total), f"{r.tokens_per_second / r.plan.gpus:,.0f}", "") for change, r in ways]
        title = "Cheapest changes that make it fit" if ways else "No three changes make it fit; try --search"
        print()
        table(title, ("", "GiB", "tokens/s a GPU", ""), rows)


def show_search(found: list[Forecast], model: Model, plan: Plan, gpu: Gpu) -> None:
    """Print the plans that fit, the fastest first."""
    print(heading(model, plan, gpu, model.notes), "", sep="\n")
    rows = []
    for rank, result in enumerate(found, 1):
        sent = sum(result.traffic.values()) / 1e9
        numbers = (f"{result.tokens_per_second:,.0f}", f"{result.seconds:.3g}", gib(result.total), f"{sent:.3g}")
        rows.append((str(rank), *numbers, described(result.plan)))
    title = "Plans that fit, the fastest first" if found else "No plan fits: take more GPUs, or larger ones"
    table(title, ("", "tokens/s", "s a step", "GiB", "GB sent", "settings"), rows)


def as_json(result: Forecast, gpu: Gpu) -> dict[str, Json]:
    """A forecast as values; sizes in bytes, times in seconds."""
    return {"fits": result.fits(gpu), "total": result.total, **asdict(result)}


# --- the plot --------------------------------------------------------------------------------------------------

COLOURS = ("#1f4e79", "#3f7fb5", "#9cc3e0", "#e07b1f", "#f6c185", "#2e7d4f", "#7fbf94", "#cfe6d5", "#c9c9cf")
DARK = (COLOURS[0], COLOURS[1], COLOURS[3], COLOURS[5])
"""Colours on which text is white."""
INK, FAINT, ALARM, GRID, PAPER = "#1d1f24", "#6b717b", "#c0262d", "#e6e8ec", "#ffffff"
WIDTH, LEFT, RIGHT, END, TOP, ROW, BAR, FOOT = 900, 206, 800, 876, 116, 54, 30, 122
"""Pixels: the width; where bars begin and end, and totals end; where rows do; heights of a row, a bar, the legend."""
Mark = tuple[str, dict[str, Json], str]
"""An SVG element: its tag, attributes and text."""


def rect(x: float, y: float, width: float, height: float, fill: str) -> Mark:
    """A filled rectangle."""
    return "rect", {"x": round(x, 1), "y": y, "width": round(width, 1), "height": height, "fill": fill}, ""


def upright(x: float, top: float, bottom: float, stroke: str, width: float = 1) -> Mark:
    """A vertical line."""
    ends = {"x1": round(x, 1), "y1": top, "x2": round(x, 1), "y2": bottom}
    return "line", {**ends, "stroke": stroke, "stroke-width": width}, ""


def text(x: float, y: float, words: str, fill: str = INK, **style: Json) -> Mark:
    """A text; ``size`` in pixels, ``anchor``: whether its start, middle or end is at ``x``, ``weight``."""
    look = {"size": 13, "anchor": "start", "weight": "normal", **style}
    names = {"size": "font-size", "anchor": "text-anchor", "weight": "font-weight"}
    return "text", {"x": round(x, 1), "y": y, "fill": fill, **{names[key]: value for key, value in look.items()}}, words


def draw(rows: list[tuple[str, Forecast]], chosen: Plan, gpu: Gpu, title: str, subtitle: str) -> list[Mark]:
    """Stacked bars, one a row, up to one and a half times the GPU's memory; longer ones are cut."""
    longest = max(result.total for _, result in rows) / GIB
    scale = (RIGHT - LEFT) / max(gpu.memory * 1.05, min(longest, gpu.memory * 1.5))
    limit, bottom = LEFT + gpu.memory * scale, TOP + ROW * len(rows)
    marks = [rect(0, 0, WIDTH, bottom + FOOT, PAPER), text(24, 36, title, size=19, weight="bold")]
    marks += [text(24, 58, subtitle, FAINT)]
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200) if s * scale >= 60)
    for value in range(0, int((RIGHT - LEFT) / scale) + 1, step):
        x = LEFT + value * scale
        marks += [upright(x, TOP - 6, bottom, GRID), text(x, bottom + 18, str(value), FAINT, anchor="middle")]
    marks += [text(END, bottom + 18, "GiB", FAINT, anchor="end"), text(END, TOP - 16, "total", FAINT, anchor="end")]
    for index, (label, result) in enumerate(rows):
        y, shards = TOP + ROW * index + 6, result.plan.shards
        weight = "bold" if result.plan == chosen else "normal"
        marks += [text(LEFT - 14, y + 13, label, size=14, anchor="end", weight=weight)]
        below = f"{shards} shards" if shards > 1 else "whole on each GPU"
        marks += [text(LEFT - 14, y + 29, below, FAINT, size=12, anchor="end"), *draw_row(y, result, gpu, scale)]
    marks += [upright(limit, TOP - 8, bottom, ALARM, 2)]
    marks += [text(limit, TOP - 16, f"{gpu.name}: {gpu.memory:g} GiB", ALARM, anchor="middle", weight="bold")]
    present = [i for i, kind in enumerate(KINDS) if any(result.memory[kind] for _, result in rows)]
    for place, index in enumerate(present):
        x, y = 24 + 288 * (place % 3), bottom + 48 + 24 * (place // 3)
        marks += [rect(x, y - 12, 14, 14, COLOURS[index]), text(x + 21, y, list(KINDS.values())[index])]
    return marks


def draw_row(y: float, result: Forecast, gpu: Gpu, scale: float) -> Iterator[Mark]:
    """A bar, ``scale`` pixels a GiB, with sizes in its wide pieces and the total to the right."""
    x = float(LEFT)
    for colour, size in zip(COLOURS, result.memory.values(), strict=True):
        width = min(size / GIB * scale, RIGHT - x)
        if width > 0.5:
            yield rect(x, y, max(width - 1, 0.5), BAR, colour)
        if width > 38:
            yield text(x + width / 2, y + 20, gib(size), PAPER if colour in DARK else INK, size=12, anchor="middle")
        x += width
    if result.total / GIB * scale > RIGHT - LEFT + 1:
        yield text(RIGHT - 14, y + 24, "//", PAPER, size=26, anchor="middle", weight="bold")
    colour = INK if result.fits(gpu) else ALARM
    yield text(END, y + 20, gib(result.total), colour, size=14, anchor="end", weight="bold")


def write_svg(path: Path, marks: list[Mark], height: int) -> None:
    """Write marks as SVG."""
    font = "font-family='Helvetica Neue, Helvetica, Arial, DejaVu Sans, sans-serif'"
    size = f"width='{WIDTH}' height='{height}' viewBox='0 0 {WIDTH} {height}'"
    lines = [f"<svg xmlns='http://www.w3.org/2000/svg' {size} {font}>"]
    for tag, style, words in marks:
        attributes = " ".join(f"{name}='{value}'" for name, value in style.items())
        lines.append(f"<{tag} {attributes}>{escape(words)}</{tag}>")
    path.write_text("\n".join([*lines, "</svg>\n"]), encoding="utf-8")


def write_png(path: Path, marks: list[Mark], height: int) -> None:
    """Write marks as PNG.

    Raises:
        PlanError: matplotlib is missing.
    """
    if not find_spec("matplotlib"):
        raise PlanError(f"--plot {path}: PNG needs matplotlib; install it, or name a file that ends in .svg")
    from matplotlib import figure, patches  # noqa: PLC0415 - optional

    page = figure.Figure(figsize=(WIDTH / 72, height / 72), dpi=144)
    axes = page.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(height, 0))
    axes.axis("off")
    for order, (tag, style, words) in enumerate(marks):
        if tag == "rect":
            look = {"color": style["fill"], "linewidth": 0, "zorder": order}
            axes.add_patch(patches.Rectangle((style["x"], style["y"]), style["width"], style["height"], **look))
        elif tag == "line":
            look = {"color": style["stroke"], "linewidth": style["stroke-width"], "zorder": order}
            axes.plot((style["x1"], style["x2"]), (style["y1"], style["y2"]), **look)
        else:
            side = {"start": "left", "middle": "center", "end": "right"}[style["text-anchor"]]
            look = {"size": style["font-size"], "color": style["fill"], "weight": style["font-weight"]}
            axes.text(style["x"], style["y"], words, horizontalalignment=side, zorder=order, **look)
    page.savefig(path)


WRITERS: dict[str, Callable[[Path, list[Mark], int], None]] = {".svg": write_svg, ".png": write_png}


def plot(path: Path, model: Model, plan: Plan, gpu: Gpu, mfu: float) -> None:
    """Draw each strategy with the plan's other settings, the plan's own in bold.

    Raises:
        PlanError: The file cannot be written, or its kind is unknown.
    """
    if path.suffix not in WRITERS:
        raise PlanError(f"--plot {path}: unknown kind; name a file that ends in {' or '.join(WRITERS)}")
    node = str(plan.gpus_per_node)
    several = {node: f"FSDP, reshard to {node}", "hsdp": "HSDP"} if plan.gpus > plan.gpus_per_node else {}
    names = {"ddp": "DDP", "grad-op": "FSDP, no reshard", **several, "fsdp": "FSDP"}
    names.setdefault(plan.strategy, f"FSDP, reshard to {plan.strategy}" if plan.small else plan.strategy.upper())
    plans = [(label, try_plan(plan, strategy=name)) for name, label in names.items()]
    rows = [(label, forecast(model, p, gpu, mfu)) for label, p in plans if p]
    title = f"{model.name} on {plan.gpus} x {gpu.name}: memory of a GPU at the peak of a step"
    try:
        marks = draw(rows, plan, gpu, title, described(plan, "strategy"))
        WRITERS[path.suffix](path, marks, TOP + ROW * len(rows) + FOOT)
    except OSError as error:
        raise PlanError(f"--plot {path}: {error.strerror}; choose another place") from error


# --- the command line ------------------------------------------------------------------------------------------


def load_config(name: str) -> dict[str, Json]:
    """A preset, or a config.json.

    Raises:
        PlanError: There is neither, or the file holds something else.
    """
    if name in PRESETS:
        return PRESETS[name]
    path = Path(name) / "config.json" if Path(name).is_dir() else Path(name)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"{path}: {error.strerror}; give a config.json, or one of {', '.join(PRESETS)}") from error
    except ValueError as error:
        raise PlanError(f"{path}: not JSON ({error}); give a Hugging Face config.json") from error
    if not isinstance(data, dict):
        raise PlanError(f"{path}: holds no JSON object; give a Hugging Face config.json")
    return data


def choose_gpu(name: str) -> Gpu:
    """A GPU by its type, or by its memory in GiB, then with the speed of an H100.

    Raises:
        PlanError: It is neither.
    """
    if name.lower() in GPUS:
        return GPUS[name.lower()]
    if not name.replace(".", "", 1).isdecimal() or not float(name):
        raise PlanError(f"--gpu {name} is unknown; give its memory in GiB, or one of {', '.join(GPUS)}")
    return Gpu("GPU", float(name))


def choose_model(given: argparse.Namespace) -> Model:
    """The model that the command line names or describes.

    Raises:
        PlanError: It does neither, or the model cannot be read.
    """
    sizes = {field: getattr(given, option) for option, field in SIZES.items() if getattr(given, option) is not None}
    if given.model:
        path = Path(given.model)
        name, data = (
            (path.parent if path.name == "config.json" else path).resolve().name,
            load_config(given.model) | sizes,
        )
    elif given.layers and given.hidden:
        name, data = "model", {"vocab_size": 128256, "num_attention_heads": max(given.hidden // 128, 1), **sizes}
    else:
        raise PlanError("no model; name a preset or a config.json, or give --layers and --hidden")
    return fit_parameters(data, given.params, name) if given.params else read_model(data, name)


CHOICES = {
    "precision": tuple(WIDTHS),
    "reduce": ("auto", "fp32", "bf16"),
    "optimizer": OPTIMIZERS,
    "checkpointing": CHECKPOINTING,
    "attention": ("sdpa", "eager"),
}
HELP = {
    "seq": "tokens in a sequence",
    "batch": "sequences in a forward pass of a data-parallel rank",
    "accumulate": "forward passes in a step",
    "strategy": f"{', '.join(STRATEGIES)}, or the GPUs to reshard to after forward",
    "reduce": "dtype of gradients in reduction",
    "offload": "keep shards in host memory",
    "tp": "tensor-parallel degree, with sequence parallelism",
    "cp": "context-parallel degree",
    "loss_chunks": "pieces in which logits and loss are made",
    "host_memory": "GiB of a node's main memory",
}


def parser() -> argparse.ArgumentParser:
    """The command line; the settings' defaults are those of ``Plan``."""
    command = argparse.ArgumentParser(
        usage="%(prog)s [MODEL] [options]",
        description=__doc__,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=24, width=120),
    )
    command.add_argument("model", nargs="?", metavar="MODEL", help=f"config.json, its folder, or {', '.join(PRESETS)}")
    for option, field in SIZES.items():
        command.add_argument(
            f"--{option.replace('_', '-')}", type=int, metavar="N", help=f"{field}, in place of MODEL's"
        )
    command.add_argument("--params", type=float, metavar="N", help="all parameters, to which MLPs are made to fit")
    command.add_argument("--gpu", default="h100", help=f"{', '.join(GPUS)}, or GiB; default h100")
    for field in fields(Plan):
        kind = {"int": {"type": int, "metavar": "N"}, "str": {"choices": CHOICES.get(field.name)}}.get(field.type)
        kind = {"default": field.default, **kind} if kind else {"action": "store_true"}
        about = "; ".join(filter(None, (HELP.get(field.name), f"default {field.default}" if field.default else "")))
        command.add_argument(f"--{field.name.replace('_', '-')}", help=about, **kind)
    command.add_argument("--mfu", type=float, default=0.4, help="share of the GPU's FLOP/s to reckon with; default 0.4")
    command.add_argument("--search", action="store_true", help="find the fastest settings that fit")
    command.add_argument("--plot", type=Path, metavar="FILE", help="draw each strategy's memory, as .svg or .png")
    command.add_argument("--json", action="store_true", help="print JSON; sizes in bytes")
    return command


def run(given: argparse.Namespace) -> int:
    """Do what the command line asks; the exit status.

    Raises:
        PlanError: The request is wrong.
    """
    if not 0 < given.mfu <= 1:
        raise PlanError(f"--mfu is {given.mfu:g}; give a share of at most 1")
    model, gpu = choose_model(given), choose_gpu(given.gpu)
    plan = Plan(**{field.name: getattr(given, field.name) for field in fields(Plan)})
    about = {"model": model.name, "parameters": model.parameters, "notes": model.notes, "gpu": asdict(gpu)}
    if given.plot:
        plot(given.plot, model, plan, gpu, given.mfu)
    if given.search:
        found = search(model, plan, gpu, given.mfu)
        if given.json:
            print(json.dumps({**about, "found": [as_json(result, gpu) for result in found]}, indent=1))
        else:
            show_search(found, model, plan, gpu)
        return 0 if found else 1
    result = forecast(model, plan, gpu, given.mfu)
    ways = [] if result.fits(gpu) else remedies(model, plan, gpu, given.mfu)
    if given.json:
        listed = [{"change": change, **as_json(way, gpu)} for change, way in ways]
        print(json.dumps({**about, **as_json(result, gpu), "remedies": listed}, indent=1))
    else:
        show_plan(result, model, gpu, ways)
    return 0 if result.fits(gpu) else 1


def main() -> int:
    """Run the command line; a complaint is a line on standard error."""
    command = parser()
    try:
        return run(command.parse_args())
    except PlanError as error:
        print(f"{command.prog}: error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())

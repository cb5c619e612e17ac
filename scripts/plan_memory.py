#!/usr/bin/env python3
"""Will it fit? The GPU memory of a training step under DDP or FSDP2, when it peaks, and what to change.

    plan_memory.py llama-3.1-8b --gpus 8 --gpu h100 --seq 8192 --batch 2
    plan_memory.py path/to/config.json --gpus 64 --search
    plan_memory.py --params 13e9 --layers 40 --hidden 5120 --gpus 16 --plot memory.svg

Figures are for one GPU in eager mode with the modules of transformers; torch.compile and fused norms keep less. Times
rest on --mfu and nominal links: they only order plans. Exit status: 0 it fits, 1 nothing fits, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Iterator
from html import escape
from importlib.util import find_spec
from itertools import combinations, product
from pathlib import Path
from typing import Any

GIB = 2**30
CONTEXT, FRAGMENTATION = 1.5 * GIB, 0.05
"""Assumed: bytes of CUDA context, NCCL and cuBLAS; what the caching allocator holds beyond its tensors."""
EFFICIENCY, PCIE, HOST = 0.8, 25e9, 200e9
"""Assumed: share of a link's speed that collectives reach; bytes a second of PCIe 4.0 x16 and of host memory."""
WIDTHS = {"fp32": (4, 4, 4), "bf16-mixed": (4, 2, 4), "bf16-reduce": (4, 2, 2), "bf16": (2, 2, 2)}
"""Bytes of an element: as parameters are kept, in computation and all-gather, in reduction."""
POWERS = (1, 2, 4, 8)
LADDERS: dict[str, tuple[Any, ...]] = {
    "loss_chunks": (1, 8),
    "attention": ("eager", "sdpa"),
    "strategy": ("ddp", "grad-op", "hsdp", "fsdp"),
    "precision": ("fp32", "bf16-mixed"),
    "checkpointing": ("none", "selective", "full"),
    "optimizer": ("adamw", "adamw-fused", "adamw-8bit"),
    "tp": POWERS,
    "cp": POWERS,
    "offload": (False, True),
}
"""Settings whose later values need less memory, the cheapest first."""
SETTINGS = {
    "seq": (4096, "tokens of a sequence"),
    "batch": (1, "sequences in a forward pass of a data-parallel rank"),
    "accumulate": (1, "forward passes in a step"),
    "gpus": (8, "of all nodes"),
    "gpus_per_node": (8, ""),
    "strategy": ("fsdp", f"{', '.join(LADDERS['strategy'])}, or GPUs to reshard to after forward"),
    "precision": ("bf16-mixed", "", *WIDTHS),
    "optimizer": ("adamw", "", *LADDERS["optimizer"], "sgd", "muon"),
    "checkpointing": ("none", "of activations", *LADDERS["checkpointing"]),
    "attention": ("sdpa", "", *LADDERS["attention"]),
    "offload": (False, "keep shards in host memory"),
    "tp": (1, "tensor-parallel degree, with sequence parallelism"),
    "cp": (1, "context-parallel degree"),
    "loss_chunks": (1, "pieces in which logits and loss are made"),
    "host_memory": (2000, "GiB of a node"),
}
"""Settings of a run: default, help, choices."""
KINDS = {
    "parameters": "#1f4e79",
    "optimizer state": "#9cc3e0",
    "gradients": "#3f7fb5",
    "gathered parameters": "#e07b1f",
    "gradient buffers": "#f6c185",
    "activations": "#2e7d4f",
    "logits and loss": "#a5d3b0",
    "context, fragmentation": "#c9c9cf",
}
GPUS = """\
b200 178 2250 900 50
h200 140 989 450 50
h100 79.6 989 450 50
a100 79.3 312 300 25
a100-40 39.5 312 300 25
mi300x 191 1307 448 50
l40s 44.5 362 25 12.5
l4 22.1 121 25 12.5"""
"""From data sheets: usable GiB, dense bf16 TFLOP/s, GB/s one way within a node and to other nodes."""
NAMES = """\
hidden hidden_size n_embd
layers num_hidden_layers n_layer
heads num_attention_heads n_head
kv_heads num_key_value_heads
ffn intermediate_size n_inner
vocab vocab_size
experts num_experts num_local_experts n_routed_experts
active_experts num_experts_per_tok
expert_ffn moe_intermediate_size
positions max_position_embeddings n_positions"""
"""Sizes of a model, and their names in config.json."""
PRESETS = """\
llama-3.1-8b llama 4096 32 32 8 14336 128256
llama-3.1-70b llama 8192 80 64 8 28672 128256
qwen2.5-7b qwen2 3584 28 28 4 18944 152064
mixtral-8x7b mixtral 4096 32 32 8 14336 32000 8 2
gpt2 gpt2 768 12 12 12 3072 50257"""
"""Name, model_type, sizes in the order of ``NAMES``."""
FAMILIES = """\
llama mistral mixtral 2 4 2 2 4 2 0
qwen2 2 4 2 2 4 2 0 qkv-bias
qwen3 qwen3_moe 2 4 3 3 4 2 1 qk-norm
deepseek_v2 deepseek_v3 2 4 2 3 4 2 0 latent
gemma 2 2 2 2 4 4 0 tied
gemma2 4 2 2 2 4 8 0 tied
gemma3_text 4 2 2 2 4 8 2 tied qk-norm
phi3 2 4 4 3 4 2 0
phi 2 2 3 2 5 0 0 layer head-bias
gpt_neox 4 3 4 3 2 0 0 layer
gpt2 4 4 2 2 5 0 0 layer embedded tied"""
"""By the modules of transformers 5: vectors of a block's norms; elements a token that autograd keeps in the compute
dtype, times hidden, q, kv and the MLP's width, and in float32, times hidden and q + kv; traits. Kept are inputs: of
products, of LayerNorm (RMSNorm: two copies), of attention with its output (FlashAttention-2, arXiv:2307.08691, 3.2.2).
"""
Json = Any


class PlanError(Exception):
    """Something in the request is wrong; the message says what, where, and what to do."""


class Plan(argparse.Namespace):
    """Settings of a run, and what follows from them."""

    def __init__(self, **settings: Json) -> None:
        self.settings = {name: default for name, (default, *_) in SETTINGS.items()} | settings
        super().__init__(**self.settings)
        for name, value in self.settings.items():
            if type(value) is int and value < 1:
                raise PlanError(f"{options({name: value})} is too little; give 1 or more")
        if self.gpus % (self.tp * self.cp) or self.tp > self.gpus_per_node:
            raise PlanError(f"--tp {self.tp} --cp {self.cp} do not divide --gpus {self.gpus} or a node; change one")
        if self.gpus > self.gpus_per_node and self.gpus % self.gpus_per_node:
            raise PlanError(f"--gpus {self.gpus} does not fill nodes of {self.gpus_per_node}; change --gpus-per-node")
        self.ranks = self.gpus // self.tp  # over which FSDP may shard, context-parallel ones among them
        in_node = math.gcd(self.ranks, max(self.gpus_per_node // self.tp, 1))
        self.shards = {"ddp": 1, "hsdp": in_node}.get(self.strategy, self.ranks)
        known, number = LADDERS["strategy"], int(self.strategy) if self.strategy.isdecimal() else 0
        if self.strategy not in known and (number < 2 or self.ranks % number):
            more = f"{', '.join(known)}, or to reshard to N GPUs a divisor of {self.ranks} above 1"
            raise PlanError(f"--strategy {self.strategy} is unknown; give {more}")
        self.small = number or int(self.strategy in known[:2])  # a block's shards till backward: 1 whole, 0 as at rest
        if self.offload and self.strategy == "ddp":
            raise PlanError("--offload needs parameters that FSDP shards; change --strategy")
        self.tokens = -(-self.seq // self.cp) * self.batch  # of one GPU in a forward pass
        self.stored, self.low, self.reduce = WIDTHS[self.precision]


def options(settings: dict[str, Json]) -> str:
    """Settings as options of the command line."""
    named = {f"--{name.replace('_', '-')}": value for name, value in settings.items()}
    return " ".join(name if value is True else f"{name} {value}" for name, value in named.items())


class Model:
    """A decoder from its config.json: blocks, taken to be alike, and the root group: embedding, last norm, head."""

    def __init__(self, data: dict[str, Json], name: str) -> None:
        names = {alias: line.split()[0] for line in NAMES.splitlines() for alias in line.split()}
        data = data | data.get("text_config", {})
        self.name, self.config = name, {names.get(k, k): v for k, v in data.items() if v is not None}
        get, kind = self.config.get, self.config.get("model_type", "llama")
        rows = {word: line.split() for line in FAMILIES.splitlines() for word in line.split() if word[0].isalpha()}
        self.traits = rows.get(kind, rows["llama"])
        norms, a, b, c, d, e, f = (int(word) for word in self.traits if word.isdecimal())
        self.note = "" if kind in rows else f"model_type {kind!r} is planned as a Llama; mend by --params"
        hidden, vocab, layers, self.heads = map(self.size, ("hidden", "vocab", "layers", "heads"))
        plain, ffn, chosen, sparse = "layer" in self.traits, self.size("ffn", 4 * hidden), 0, 0
        matrices, vectors, self.q, self.kv = self.attention(hidden, self.heads)
        self.experts, one, shared = 1, self.size("expert_ffn", ffn), 0
        if "experts" in self.config:
            self.experts, chosen = self.size("experts"), self.size("active_experts")
            sparse, shared = max(layers - get("first_k_dense_replace", 0), 0), one * get("n_shared_experts", 0)
        dense, ways, gated = layers - sparse, 1 if plain else 2, hidden * (self.experts + 3 * shared)
        width = dense * ffn + sparse * (chosen * one + shared)
        self.hidden, self.vocab, self.layers, self.capped = (
            hidden,
            vocab,
            layers,
            "attn_logit_softcapping" in self.config,
        )
        self.dense = layers * matrices + dense * (ways + 1) * hidden * ffn + sparse * gated
        self.vectors = layers * (vectors + norms * hidden + (ffn + hidden) * plain)
        self.routed = 3 * sparse * self.experts * hidden * one
        self.active = self.dense + self.routed * chosen / self.experts  # parameters that multiply a token
        self.low = layers * (a * hidden + b * self.q + c * self.kv) + d * width + 2 * sparse * chosen * hidden
        self.full = layers * (e * hidden + f * (self.q + self.kv) + self.heads)
        self.products = layers * 2 * (hidden + self.q + self.kv) + ways * width + sparse * chosen * hidden
        self.tied = get("tie_word_embeddings", "tied" in self.traits)
        rows = vocab * (2 - self.tied) + get("positions", 1024) * ("embedded" in self.traits)
        self.root = rows * hidden, hidden * (1 + plain) + vocab * ("head-bias" in self.traits)
        self.parameters = sum(self.root) + self.dense + self.vectors + self.routed

    def size(self, key: str, default: int | None = None) -> int:
        """A field of config.json that counts something."""
        value = self.config.get(key, default)
        if type(value) is not int or value < 1:
            raise PlanError(f"{self.name}: size {key} is {json.dumps(value)}; give a positive whole number")
        return value

    def attention(self, hidden: int, heads: int) -> tuple[int, int, int, int]:
        """Parameters of matrices and of vectors, widths of queries and of keys; DeepSeek's: arXiv:2405.04434, 2.1."""
        if "latent" in self.traits:  # keys and values are unpacked in training
            rope, rank, nope = map(self.size, ("qk_rope_head_dim", "kv_lora_rank", "qk_nope_head_dim"))
            low, qk, value = self.config.get("q_lora_rank", 0), heads * (nope + rope), heads * self.size("v_head_dim")
            matrices = (low * (hidden + qk) or hidden * qk) + hidden * (rank + rope + value)
            return matrices + rank * (heads * nope + value), low + rank, (qk + value) // 2, (qk + value) // 2
        head, bias = self.size("head_dim", max(hidden // heads, 1)), "layer" in self.traits
        q, kv, bias = heads * head, self.size("kv_heads", heads) * head, bias or self.config.get("attention_bias", 0)
        vectors = (
            (q + 2 * kv) * (bias or "qkv-bias" in self.traits) + hidden * bias + 2 * head * ("qk-norm" in self.traits)
        )
        return 2 * hidden * (q + kv), vectors, q, kv


def fit_parameters(data: dict[str, Json], parameters: float, name: str) -> Model:
    """A model whose MLPs are as wide as the number of parameters allows, which grows evenly with the width."""
    key = "moe_intermediate_size" if "moe_intermediate_size" in data else "ffn"
    one, two = (Model(data | {key: width}, name).parameters for width in (1, 2))
    width = 1 + int(parameters - one) // (two - one)
    if width < 1:
        raise PlanError(f"--params {parameters:.3g} is less than the model has without MLPs; lower --layers")
    return Model(data | {key: width}, name)


class Forecast:
    """What a plan needs of a GPU, of a node's host memory, and of time; sizes in bytes, times in seconds."""

    def __init__(self, model: Model, plan: Plan, gpu: tuple[float, ...], mfu: float) -> None:
        self.model, self.plan, n = model, plan, plan.shards
        self.whole = (model.dense + model.routed) / plan.tp + model.vectors
        padding = math.ceil(model.experts / n) * n / model.experts - 1  # FSDP2 pads dimension 0 to whole shards
        self.padded, self.root = self.whole + model.routed / plan.tp * padding, model.root[0] / plan.tp + model.root[1]
        self.shard = (self.padded + self.root) / n
        one, (state, work) = self.shard * plan.stored, self.optimizer()
        moments = [*self.moments(), ("optimizer step", one, 0, 0, work, 0)]
        self.moment, *sizes = max(moments, key=lambda moment: sum(moment[1:]))
        self.host = (2 * one + state) * min(plan.gpus, plan.gpus_per_node) * plan.offload
        sizes = [0, 0, 0, *sizes[1:]] if plan.offload else [one, state, *sizes]
        self.memory = dict(zip(KINDS, [*sizes, CONTEXT + FRAGMENTATION * sum(sizes)], strict=True))
        self.total = sum(self.memory.values())
        self.fits = self.total <= gpu[0] * GIB and self.host <= plan.host_memory * GIB
        self.time(gpu, mfu)

    def optimizer(self) -> tuple[float, float]:
        """The optimizer's state, and what its step allocates for a moment.

        Source: ``torch.optim``: AdamW keeps two tensors in the parameters' dtype, and its default implementation on a
        GPU allocates a third; SGD keeps its momentum, and allocates a tensor for weight decay; Muon keeps one for a
        block's matrices, AdamW's two for the rest. 8-bit AdamW (arXiv:2110.02861): two bytes, two scales for 256.
        """
        plan, one = self.plan, self.shard * self.plan.stored
        muon = 2 * one - (self.model.dense + self.model.routed) * plan.stored / plan.shards / plan.tp
        return {
            "adamw": (2 * one, one),
            "adamw-fused": (2 * one, 0),
            "adamw-8bit": (self.shard * (2 + 8 / 256), 0),
            "sgd": (one, one),
            "muon": (muon, one),
        }[plan.optimizer]

    def kept(self, checkpointing: str) -> float:
        """What blocks keep for backward; sequence parallelism splits all but the gathered inputs of two products.

        Source: the count of Korthikanti et al., arXiv:2205.05198, 4, for the operators of transformers. Attention
        without a fused kernel keeps scores in float32 and in the compute dtype, and keys and values repeated.
        """
        model, plan, low, scores = self.model, self.plan, self.plan.low, 0
        if checkpointing != "none":
            products = model.products * (checkpointing == "selective")
            return plan.tokens * low * (model.hidden * model.layers + products) / plan.tp
        if model.capped or plan.attention == "eager":
            scores = model.heads * plan.seq * (4 + low * ((low < 4) + model.capped)) + 2 * low * (model.q - model.kv)
        scores += 2 * low * model.hidden * (plan.tp - 1)
        return plan.tokens * (model.low * low + model.full * 4 + scores * model.layers) / plan.tp

    def moments(self) -> Iterator[tuple[str, float, float, float, float, float]]:
        """The loss and backward: gradients, gathered parameters, gradient buffers, activations, logits.

        Source: ``FSDPParamGroup`` in torch/distributed/fsdp/_fully_shard: the root stays whole until the end of
        backward, which gathers one block ahead; the input of a block's reduce-scatter lives until the next one's, the
        output of HSDP's all-reduce until the end; DDP has its buckets. ``ForCausalLMLoss`` in transformers: log-softmax
        and two gradients in float32. All of a block's gradients and activations are taken to live at once.
        """
        plan, model, low, n, layers = self.plan, self.model, self.plan.low, self.plan.shards, self.model.layers
        ddp, block, reduce = plan.strategy == "ddp", self.padded / layers, plan.reduce * (n > 1)
        all_grads = plan.stored * self.shard * (ddp or plan.accumulate > 1)
        copies = plan.reduce * (plan.strategy == "hsdp" and plan.ranks > n and plan.reduce != plan.stored)
        head, logits = (
            low * model.vocab * model.hidden / plan.tp,
            plan.tokens * model.vocab / plan.tp / plan.loss_chunks,
        )
        loss = max((12 + low * model.capped) * logits, low * logits + head) + head * (plan.loss_chunks > 1)
        kept, live = self.kept(plan.checkpointing), self.kept("none") + plan.tokens * low * model.low / 2 / plan.tp
        small = plan.small or math.inf
        for i in range(layers, -1, -1):  # the loss, then blocks
            done = self.padded * (layers - 1 - i) / layers / n
            whole = (
                self.root
                + block
                + self.padded * min(i, layers - 1) / layers / small
                + block * (0 < i < layers and small > 1)
            )
            if n == 1:  # not gathered but cast: by autocast, which keeps all, or by FSDP
                whole = (self.root + (self.whole if ddp else block)) * (low < plan.stored)
            if i == layers:
                stream = 3 * plan.tokens * model.hidden * low / plan.tp
                yield "loss", all_grads, low * whole, ddp * all_grads, kept + stream, loss
                continue
            buffers = low * self.whole / layers + head + copies * done + reduce * block * (i < layers - 1)
            before = i + (plan.checkpointing != "none")
            sizes = all_grads or plan.stored * done, low * whole, all_grads if ddp else buffers
            yield f"backward, block {i}", *sizes, (kept * before + live) / layers, 0
        done = self.padded / n
        buffers = low * self.root + copies * done
        buffers += max(low * self.root * (n > 1) + 2 * head * model.tied + reduce * block, reduce * self.root)
        yield "backward, root", all_grads or plan.stored * done, 0, all_grads if ddp else buffers, 0, 0

    def time(self, gpu: tuple[float, ...], mfu: float) -> None:
        """Estimate a step from bytes that a GPU sends and the GPUs that they span; FSDP's hide under computation.

        Source: rings send (n - 1) / n of a gathered tensor, all-reduce twice that (ZeRO, arXiv:1910.02054, 7). Tensor
        with sequence parallelism gathers and scatters the residual stream four times a block in forward and in backward
        (arXiv:2205.05198, 4). Six operations a parameter and token and half of attention (PaLM, arXiv:2204.02311, B).
        """
        plan, model, n, low = self.plan, self.model, self.plan.shards, self.plan.low
        copies, whole, small = plan.ranks // n, n * self.shard, plan.small or n
        stream = plan.tokens * low * model.layers
        rows = {  # bytes, GPUs spanned
            "all-gather": (low * whole * (1 - 1 / n), n),
            "all-gather in backward": (low * whole * (1 - 1 / small), small),
            "reduce-scatter": (plan.reduce * whole * (1 - 1 / n), n),
            "all-reduce": (plan.reduce * self.shard * 2 * (1 - 1 / copies), plan.ranks),
            "host": (3 * plan.stored * self.shard * plan.offload, 0),
            "tensor parallel": (8 * stream * model.hidden * (1 - 1 / plan.tp), 1),
            "context parallel": (6 * stream * model.kv / plan.tp * (plan.cp - 1), plan.cp),
        }
        often = {"all-reduce": 1} if n == 1 else {}
        self.traffic, times = {}, []
        for name, (size, span) in rows.items():
            self.traffic[name] = size * often.get(name, plan.accumulate)
            link = EFFICIENCY * 1e9 * gpu[2 if span * plan.tp <= plan.gpus_per_node else 3] if span else PCIE
            times.append(self.traffic[name] / link)
        flops = 6 * plan.accumulate * plan.tokens / plan.tp * (4 / 3 if plan.checkpointing == "full" else 1)
        flops *= model.active + plan.seq * model.q * model.layers + model.hidden * model.vocab
        self.compute = flops / (gpu[1] * 1e12 * mfu * (0.5 if low == 4 else 1))
        self.seconds = max(self.compute, sum(times[:5])) + sum(times[5:]) + 3 * self.host / HOST
        self.speed = plan.tokens * plan.ranks * plan.accumulate / self.seconds  # tokens a second of all GPUs


def try_plans(
    tries: Iterable[dict[str, Json]], plan: Plan, model: Model, gpu: tuple[float, ...], mfu: float
) -> list[Forecast]:
    """What comes of changes that agree with one another and fit; the fastest GPUs first, then the least memory."""
    found = []
    for change in tries:
        try:
            result = Forecast(model, Plan(**plan.settings | change), gpu, mfu)
        except PlanError:
            continue
        if result.fits:
            found.append(result)
    return sorted(found, key=lambda result: (-result.speed / result.plan.gpus, result.plan.loss_chunks, result.total))


def remedies(plan: Plan, *rest: Json) -> list[Forecast]:
    """The fewest changes, up to three, that make a plan fit."""
    changes = []
    for name, values in LADDERS.items():
        now = plan.settings[name]
        start = values.index(now) + 1 if now in values else -1 if name == "strategy" else len(values)
        changes += [{name: value} for value in values[start:]]
    for n in POWERS[1:]:
        changes += [{"batch": plan.batch // n, "accumulate": plan.accumulate * n}] * (plan.batch % n == 0)
        changes.append({"gpus": n * max(plan.gpus, plan.gpus_per_node)})
    for number in (1, 2, 3):
        merged = [{k: v for change in some for k, v in change.items()} for some in combinations(changes, number)]
        found = try_plans(merged, plan, *rest)
        if found:
            return found[:5]
    return []


def search(plan: Plan, *rest: Json) -> list[Forecast]:
    """The fastest plans for a cluster that fit, each with its best batch; offload only where nothing else fits."""
    names = ("strategy", "checkpointing", "tp", "cp", "offload")
    node = (str(plan.gpus_per_node),) if plan.gpus > plan.gpus_per_node else ()
    batches = [{"batch": b, "loss_chunks": c} for b in (*POWERS, 16, 32) for c in {plan.loss_chunks, 8}]
    for offload in LADDERS["offload"]:
        ways = product(LADDERS["strategy"] + node, LADDERS["checkpointing"], POWERS, POWERS, [offload])
        chosen = [dict(zip(names, values, strict=True)) for values in ways]
        found = [best for each in chosen for best in try_plans([each | b for b in batches], plan, *rest)[:1]]
        if found:
            return sorted(found, key=lambda result: -result.speed)[:10]
    return []


def gib(size: float) -> str:
    """Bytes in GiB."""
    return f"{size / GIB:,.{2 if size < 10 * GIB else 1}f}"


def described(result: Forecast) -> str:
    """The settings that always matter, and those that differ from the defaults."""
    hidden, always = ("gpus_per_node", "host_memory"), ("strategy", "seq", "batch")
    some = {k: v for k, v in result.plan.settings.items() if k in always or (v != SETTINGS[k][0] and k not in hidden)}
    return options(some)


def show(results: list[Forecast]) -> None:
    """Print plans with their memory, speed and traffic."""
    print("   GiB  tokens/s  s a step  GB sent  settings")
    for r in results:
        sent = sum(r.traffic.values()) / 1e9
        print(f"{gib(r.total):>6}  {r.speed:>8,.0f}  {r.seconds:>8.3g}  {sent:>7.3g}  {described(r)}")


def show_one(r: Forecast, gpu: tuple[float, ...]) -> None:
    """Print a plan's memory by kind, whether it fits, and its time."""
    spare = gpu[0] - r.total / GIB
    print(f"{described(r)}\n\nA GPU at its peak, {r.moment}, in GiB")
    for kind, size in r.memory.items():
        print(f"  {kind:<22} {gib(size):>7}  {'#' * round(40 * size / r.total)}")
    print(f"  {'total':<22} {gib(r.total):>7}  {'fits' if r.fits else 'does NOT fit'}, {spare:+.1f} GiB to spare")
    if r.host:
        print(f"host memory of a node: {gib(r.host)} of {r.plan.host_memory} GiB")
    sent = ", ".join(f"{name} {size / 1e9:.3g}" for name, size in r.traffic.items() if size) or "nothing"
    print(
        f"\nA step: {r.seconds:.3g} s, of which computation {r.compute:.3g}; {r.speed:,.0f} tokens/s; GB sent: {sent}"
    )


Mark = tuple[Any, ...]
"""A rectangle: x, y, width, height, colour, ''; or a text: x, y, anchor, size, colour, words."""
SIDES = {"start": "left", "middle": "center", "end": "right"}
INK, FAINT, ALARM = "#1d1f24", "#6b717b", "#c0262d"


def draw(rows: list[tuple[str, Forecast]], gpu: tuple[float, ...], title: str) -> list[Mark]:
    """Stacked bars, one a row, against the GPU's memory; those over one and a half times that are cut."""
    scale = 600 / min(gpu[0] * 1.5, max(gpu[0] * 1.05, *(r.total / GIB for _, r in rows)))
    marks, limit, bottom = [(24, 36, "start", 18, INK, title)], 190 + gpu[0] * scale, 84 + 46 * len(rows)
    for index, (label, result) in enumerate(rows):
        x, y = 190.0, 84 + 46 * index
        marks.append((178, y + 20, "end", 14, INK, label))
        for colour, size in zip(KINDS.values(), result.memory.values(), strict=True):
            width = max(min(size / GIB * scale, 790 - x), 0)
            marks.append((x, y, width, 30, colour, ""))
            if width > 38:
                marks.append((x + width / 2, y + 20, "middle", 12, "#ffffff" if colour < "#4" else INK, gib(size)))
            x += width
        marks.append((876, y + 20, "end", 14, INK if result.fits else ALARM, f"{gib(result.total)} GiB"))
    marks += [(limit, 76, 2, bottom - 80, ALARM, ""), (limit, 70, "middle", 13, ALARM, f"{gpu[0]:g} GiB")]
    for place, (kind, colour) in enumerate(KINDS.items()):
        x, y = 24 + 220 * (place % 4), bottom + 24 + 24 * (place // 4)
        marks += [(x, y - 12, 14, 14, colour, ""), (x + 20, y, "start", 13, FAINT, kind)]
    return marks


def write_svg(path: Path, marks: list[Mark], height: int) -> None:
    """Write marks as SVG."""
    lines = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='900' height='{height}' font-family='Helvetica, sans-serif'>"
    ]
    for x, y, width, size, colour, words in [(0, 0, 900, height, "#ffffff", ""), *marks]:
        place, shape = f"x='{x:.1f}' y='{y}' fill='{colour}'", f"width='{width}' height='{size}'"
        text = f"<text {place} text-anchor='{width}' font-size='{size}'>{escape(words)}</text>"
        lines.append(text if words else f"<rect {place} {shape}/>")
    path.write_text("\n".join([*lines, "</svg>\n"]), encoding="utf-8")


def write_png(path: Path, marks: list[Mark], height: int) -> None:
    """Write marks as PNG."""
    if not find_spec("matplotlib"):
        raise PlanError(f"--plot {path}: PNG needs matplotlib; install it, or name a file that ends in .svg")
    from matplotlib import figure, patches  # noqa: PLC0415 - optional

    page = figure.Figure((9, height / 100), dpi=200)
    axes = page.add_axes((0, 0, 1, 1), xlim=(0, 900), ylim=(height, 0), frame_on=False)
    for x, y, width, size, colour, words in marks:
        if words:
            axes.text(x, y, words, color=colour, fontsize=size * 0.72, ha=SIDES[width])
        else:
            axes.add_patch(patches.Rectangle((x, y), width, size, color=colour, linewidth=0))
    page.savefig(path)


def plot(path: Path, plan: Plan, model: Model, gpu: tuple[float, ...], mfu: float) -> None:
    """Draw each strategy with the plan's other settings."""
    names = {"ddp": "DDP", "grad-op": "FSDP, no reshard", "hsdp": "HSDP", "fsdp": "FSDP"}
    rows = []
    for name in [*LADDERS["strategy"], *{str(plan.small)} - {"0", "1"}]:
        try:
            result = Forecast(model, Plan(**plan.settings | {"strategy": name}), gpu, mfu)
        except PlanError:
            continue
        rows.append((names.get(name, f"FSDP, reshard to {name}"), result))
    writer = {".svg": write_svg, ".png": write_png}.get(path.suffix)
    if not writer:
        raise PlanError(f"--plot {path}: unknown kind; name a file that ends in .svg or .png")
    try:
        writer(
            path, draw(rows, gpu, f"{model.name} on {plan.gpus} GPUs, {described(rows[-1][1])}"), 150 + 46 * len(rows)
        )
    except OSError as error:
        raise PlanError(f"--plot {path}: {error.strerror}; choose another place") from error


def choose_gpu(name: str) -> tuple[float, ...]:
    """A GPU by its type, or by its memory in GiB, then with the speed of an H100."""
    rows = {row.split()[0]: tuple(map(float, row.split()[1:])) for row in GPUS.splitlines()}
    if name.lower() in rows:
        return rows[name.lower()]
    if not name.replace(".", "", 1).isdecimal() or not float(name):
        raise PlanError(f"--gpu {name} is unknown; give its memory in GiB, or one of {', '.join(rows)}")
    return float(name), *rows["h100"][1:]


def choose_model(given: argparse.Namespace) -> Model:
    """The model that the command line names or describes."""
    names = [line.split()[0] for line in NAMES.splitlines()]
    sizes = {name: getattr(given, name) for name in names if getattr(given, name) is not None}
    presets = {row.split()[0]: row.split()[1:] for row in PRESETS.splitlines()}
    path = Path(given.model or ".")
    if given.model in presets:
        kind, *numbers = presets[given.model]
        data = {"model_type": kind, **dict(zip(names, map(int, numbers), strict=False))}
    elif given.model:
        path = path / "config.json" if path.is_dir() else path
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise PlanError(f"{path}: {error}; give a config.json or one of {', '.join(presets)}") from error
    elif given.layers and given.hidden:
        data = {"vocab": 128256, "heads": max(given.hidden // 128, 1)}
    else:
        raise PlanError("no model; name a preset or a config.json, or give --layers and --hidden")
    if not isinstance(data, dict):
        raise PlanError(f"{path}: holds no JSON object; give a Hugging Face config.json")
    name = (path.parent if path.name == "config.json" else path).resolve().name
    return fit_parameters(data | sizes, given.params, name) if given.params else Model(data | sizes, name)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    for line in NAMES.splitlines():
        parser.add_argument(f"--{line.split()[0].replace('_', '-')}", type=int, metavar="N", help=line.split()[1])
    parser.add_argument("--params", type=float, metavar="N", help="all parameters, to which MLPs are made to fit")
    parser.add_argument("--gpu", default="h100", help="type, or GiB; default h100")
    for name, (default, about, *choices) in SETTINGS.items():
        kind = {
            "type": type(default),
            "choices": choices or None,
            "default": default,
            "metavar": None if choices else "N",
        }
        kind = {"action": "store_true"} if default is False else kind
        parser.add_argument(f"--{name.replace('_', '-')}", help=f"{about}; default {default}".lstrip("; "), **kind)
    parser.add_argument("--mfu", type=float, default=0.4, help="share of the GPU's FLOP/s; default 0.4")
    parser.add_argument("--search", action="store_true", help="find the fastest settings that fit")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw each strategy's memory, as .svg or .png")
    parser.add_argument("--json", action="store_true", help="print JSON; bytes and seconds")
    return parser.parse_args()


def as_json(r: Forecast) -> dict[str, Json]:
    """A forecast as values."""
    names = ("fits", "total", "moment", "memory", "host", "traffic", "compute", "seconds", "speed")
    return {"settings": r.plan.settings, **{name: getattr(r, name) for name in names}}


def run(given: argparse.Namespace) -> int:
    """Do what the command line asks; the exit status."""
    if not 0 < given.mfu <= 1:
        raise PlanError(f"--mfu is {given.mfu:g}; give a share of at most 1")
    model, gpu = choose_model(given), choose_gpu(given.gpu)
    plan = Plan(**{name: getattr(given, name) for name in SETTINGS})
    rest = plan, model, gpu, given.mfu
    if given.plot:
        plot(given.plot, *rest)
    result = Forecast(model, plan, gpu, given.mfu)
    found = search(*rest) if given.search else [] if result.fits else remedies(*rest)
    about = f"{model.name}: {model.parameters:,} parameters on {plan.gpus} x {given.gpu}"
    if given.json:
        ways = [as_json(each) for each in found]
        about = {"model": model.name, "parameters": model.parameters, "note": model.note}
        print(json.dumps({**about, **({} if given.search else as_json(result)), "found": ways}, indent=1))
    else:
        print("\n".join(filter(None, (about, model.note))))
        if not given.search:
            show_one(result, gpu)
        if found:
            print("\nPlans that fit, the fastest first" if given.search else "\nThe cheapest changes that make it fit")
            show(found)
        elif given.search or not result.fits:
            print("No plan fits: take more GPUs, or larger ones")
    return 0 if (found if given.search else result.fits) else 1


def main() -> int:
    """Run the command line; a complaint is a line on standard error."""
    try:
        return run(parse())
    except PlanError as error:
        print(f"plan_memory.py: error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())

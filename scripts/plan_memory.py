#!/usr/bin/env python3
"""Will it fit? The GPU memory of a training step under DDP or FSDP2, when it peaks, and what to change.

    plan_memory.py llama-3.1-8b --gpus 8 --gpu h100 --seq 8192 --batch 2
    plan_memory.py path/to/config.json --gpus 64 --search
    plan_memory.py --params 13e9 --layers 40 --hidden 5120 --plot memory.svg

Figures: one GPU, eager mode, FlashAttention, modules of transformers; torch.compile and fused norms keep less. Times
only order plans. Exit status: 0 it fits, 1 nothing fits, 2 wrong usage.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator
from contextlib import suppress
from html import escape
from itertools import product
from pathlib import Path
from textwrap import wrap
from typing import Any

GIB = 2**30
CONTEXT, FRAGMENTATION = 1.5 * GIB, 0.05  # assumed: of CUDA and NCCL; what the allocator wastes
MFU, EFFICIENCY, HOST = 0.4, 0.8, 200e9  # assumed: reached share of FLOP/s, of links; bytes/s of host memory
WIDTHS = {"fp32": (4, 4), "bf16-mixed": (4, 2), "bf16": (2, 2)}  # bytes of an element: kept and reduced; computed
OPTIMIZERS = {"adamw": (2, 1), "adamw-fused": (2, 0), "adamw-8bit": (0, 0), "sgd": (1, 1), "muon": (2, 1)}
"""Tensors in the parameters' dtype of the state, and that a step allocates. Source: ``torch.optim`` with foreach."""
POWERS = (1, 2, 4, 8)
LADDERS = {
    "strategy": ("ddp", "grad-op", "hsdp", "fsdp"),
    "recompute": ("none", "selective", "full"),
    "tp": POWERS,
    "cp": POWERS,
    "batch": (*POWERS, 16, 32),
    "chunks": (1, 8),
    "offload": (False, True),
    "precision": ("fp32", "bf16-mixed"),
    "optimizer": ("adamw", "adamw-fused", "adamw-8bit"),
}
"""What may be changed; a search keeps precision and optimizer."""
GPUS = {
    "b200": (178, 2250, 900, 50),
    "h200": (140, 989, 450, 50),
    "h100": (79.6, 989, 450, 50),
    "a100": (79.3, 312, 300, 25),
    "mi300x": (191, 1307, 448, 50),
    "l4": (22.1, 121, 25, 12.5),
}
"""From data sheets: usable GiB, dense bf16 TFLOP/s, GB/s one way in a node and between nodes."""
SETTINGS = {
    "seq": (4096, "tokens of a sequence"),
    "batch": (1, "sequences a data-parallel rank takes at once"),
    "gpu": ("h100", "", *GPUS),
    "gib": (0.0, "usable GiB, if not the type's"),
    "gpus": (8, ""),
    "node": (8, "GPUs of a node"),
    "strategy": ("fsdp", "ddp, grad-op, hsdp, fsdp, or GPUs to reshard to after forward"),
    "precision": ("bf16-mixed", "", *WIDTHS),
    "optimizer": ("adamw", "", *OPTIMIZERS),
    "recompute": ("none", "activation checkpointing", *LADDERS["recompute"]),
    "tp": (1, "tensor and sequence parallel degree"),
    "cp": (1, "context parallel degree"),
    "chunks": (1, "pieces of logits and loss"),
    "offload": (False, "keep shards in host memory"),
}
KINDS = {
    "parameters": "#6f9bc8",
    "optimizer state": "#a9c8e6",
    "gradients": "#8fd0d6",
    "gathered parameters": "#f2a65a",
    "gradient buffers": "#f8cf9d",
    "activations": "#7fbf94",
    "logits and loss": "#c0e0c0",
    "context, fragmentation": "#d4d4da",
}
NAMES = """\
hidden hidden_size n_embd
layers num_hidden_layers n_layer
heads num_attention_heads n_head
kv num_key_value_heads
ffn intermediate_size n_inner
vocab vocab_size
experts num_experts num_local_experts n_routed_experts
topk num_experts_per_tok
expert moe_intermediate_size"""
"""Sizes of a model, and their names in config.json."""
PRESETS = {
    "llama-3.1-8b": ("llama", 4096, 32, 32, 8, 14336, 128256),
    "llama-3.1-70b": ("llama", 8192, 80, 64, 8, 28672, 128256),
    "mixtral-8x7b": ("mixtral", 4096, 32, 32, 8, 14336, 32000, 8, 2),
}
FAMILIES = """\
llama/mistral/mixtral 2 4 2 2 4 2 0
qwen2 2 4 2 2 4 2 0 qkv-bias
qwen3/qwen3_moe 2 4 3 3 4 2 1 qk-norm
deepseek_v2/deepseek_v3 2 4 2 3 4 2 0 latent
gemma 2 2 2 2 4 4 0 tied
gemma2 4 2 2 2 4 8 0 tied
gemma3_text 4 2 2 2 4 8 2 tied qk-norm
phi3 2 4 4 3 4 2 0
phi 2 2 3 2 5 0 0 layer head-bias
gpt_neox 4 3 4 3 2 0 0 layer
gpt2 4 4 2 2 5 0 0 layer embedded tied"""
"""By the modules of transformers 5: vectors of a block's norms; elements a token that autograd keeps in the compute
dtype, times hidden, q, kv and MLP width, and in float32, times hidden and q + kv; traits. Kept are the inputs of
products, norms and attention, and its output (FlashAttention-2, arXiv:2307.08691, 3.2.2).
"""
Fields = dict[str, Any]
Model = Plan = argparse.Namespace  # below called m and p


class PlanError(Exception):
    """A wrong request: what, where, and what to do."""


def rows(table: str) -> dict[str, list[str]]:
    """The rows of a table by their first word, which may be several."""
    return {name: row for first, *row in map(str.split, table.splitlines()) for name in first.split("/")}


def size(c: Fields, key: str, default: int | None = None) -> int:
    """A field of config.json that counts something."""
    value = c.get(key, default)
    if type(value) is not int or value < 1:
        raise PlanError(f"{c['name']}: size {key} is {value!r}; give a positive whole number")
    return value


def attention(c: Fields, traits: list[str]) -> tuple[int, ...]:
    """Parameters of matrices and of vectors, widths of queries and of keys; DeepSeek's: arXiv:2405.04434, 2.1."""
    h, heads = size(c, "hidden"), size(c, "heads")
    if "latent" in traits:
        keys = "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "kv_lora_rank"
        rope, nope, value, rank = (size(c, key) for key in keys)
        low, qk, value = c.get("q_lora_rank", 0), heads * (nope + rope), heads * value
        matrices = (low * (h + qk) or h * qk) + h * (rank + rope + value) + rank * (heads * nope + value)
        return matrices, low + rank, *[(qk + value) // 2] * 2
    head, bias = size(c, "head_dim", max(h // heads, 1)), c.get("attention_bias", "layer" in traits)
    q, kv = heads * head, size(c, "kv", heads) * head
    vectors = (q + 2 * kv) * (bias or "qkv-bias" in traits) + h * bias + 2 * head * ("qk-norm" in traits)
    return 2 * h * (q + kv), vectors, q, kv


def read_model(data: Fields, name: str) -> Model:
    """A decoder from its config.json: blocks, taken to be alike, and the root: embedding, last norm, head."""
    names, families = {alias: short for short, row in rows(NAMES).items() for alias in row}, rows(FAMILIES)
    data = data | data.get("text_config", {})
    c = {names.get(key, key): value for key, value in data.items() if value is not None} | {"name": name}
    kind, (h, vocab, layers) = c.get("model_type", "llama"), (size(c, key) for key in ("hidden", "vocab", "layers"))
    row = families.get(kind, families["llama"])
    (norms, a, b, d, e, f, g), traits = map(int, row[:7]), row[7:]
    m = Model(name=name, hidden=h, vocab=vocab, layers=layers, experts=1)
    m.note = "" if kind in families else f"model_type {kind!r} is planned as a Llama; mend by --params"
    matrices, vectors, q, m.kv = attention(c, traits)
    m.q, plain, ffn, moe, top, shared = q, "layer" in traits, size(c, "ffn", 4 * h), 0, 0, 0
    one = size(c, "expert", ffn)
    if "experts" in c:
        m.experts, top, shared = size(c, "experts"), size(c, "topk"), c.get("n_shared_experts", 0)
        moe = max(layers - c.get("first_k_dense_replace", 0), 0)
    dense, copies = layers - moe, moe * top * h
    width = dense * ffn + moe * (top + shared) * one  # that a token meets, all layers
    m.dense = layers * matrices + h * (dense * (3 - plain) * ffn + moe * (m.experts + 3 * shared * one))
    m.vectors = layers * (vectors + norms * h + (ffn + h) * plain)
    m.routed = 3 * moe * m.experts * h * one
    m.active = m.dense + m.routed * top / m.experts + h * vocab
    m.low = layers * (a * h + b * q + d * m.kv) + e * width + 2 * copies
    m.full = layers * (f * h + g * (q + m.kv) + c["heads"])
    m.products = 2 * layers * (h + q + m.kv) + (2 - plain) * width + copies
    m.tied = c.get("tie_word_embeddings", "tied" in traits)
    embedded = vocab * (2 - m.tied) + c.get("n_positions", 1024) * ("embedded" in traits)
    m.root = embedded * h, h * (1 + plain) + vocab * ("head-bias" in traits)
    m.parameters = sum(m.root) + m.dense + m.vectors + m.routed
    return m


def check(p: Plan) -> None:
    """Check settings; find the GPU and the number of shards."""
    for name, value in p.settings.items():
        if type(value) is int and value < 1:
            raise PlanError(f"--{name} {value} is too little")
    if p.gpus % (p.tp * p.cp) or p.tp > p.node:
        raise PlanError(f"--tp {p.tp} --cp {p.cp} do not divide --gpus {p.gpus} or a node")
    gib, p.tflops, *p.links = GPUS[p.gpu]
    p.gib = p.gib or gib
    p.ranks = p.gpus // p.tp  # FSDP may shard over context-parallel ones too
    p.shards = {"ddp": 1, "hsdp": math.gcd(p.ranks, p.node // p.tp)}.get(p.strategy, p.ranks)
    known, number = LADDERS["strategy"], int(p.strategy) if p.strategy.isdecimal() else 0
    if p.strategy not in known and (number < 2 or p.ranks % number):
        raise PlanError(f"--strategy {p.strategy} is unknown; give {', '.join(known)} or a divisor of {p.ranks}")
    if p.offload and p.strategy == "ddp":
        raise PlanError("--offload needs FSDP; change --strategy")
    p.small = number or int(p.strategy in known[:2])  # a block's shards till backward: 1 whole, 0 as at rest


def make_plan(m: Model, settings: Fields) -> Plan:
    """Settings of a run, and what comes of them; sizes in bytes, times in seconds."""
    settings = {name: row[0] for name, row in SETTINGS.items()} | settings
    p = Plan(settings=settings, **settings)
    check(p)
    p.tokens = -(-p.seq // p.cp) * p.batch  # of a GPU in a forward pass
    p.stored, p.low = WIDTHS[p.precision]
    padding = math.ceil(m.experts / p.shards) * p.shards / m.experts  # FSDP2 pads dimension 0, here the experts
    dense, routed = m.dense / p.tp + m.vectors, m.routed / p.tp
    p.root, p.whole, p.padded = m.root[0] / p.tp + m.root[1], dense + routed, dense + routed * padding
    p.shard = (p.padded + p.root) / p.shards
    (tensors, work), one = OPTIMIZERS[p.optimizer], p.stored * p.shard
    state = one * tensors
    if p.optimizer == "adamw-8bit":  # two bytes, and 8 for 256 elements (arXiv:2110.02861)
        state = p.shard * (2 + 8 / 256)
    if p.optimizer == "muon":  # one tensor for matrices of blocks
        state -= p.stored * (m.dense + m.routed) / p.tp / p.shards
    p.host = (2 * one + state) * min(p.gpus, p.node) * p.offload
    if p.offload:
        one = state = 0
    step = "optimizer step", one, 0, one * (work + (p.strategy == "ddp")), 0, 0
    p.moment, *sizes = max(*moments(m, p), step, key=lambda row: sum(row[1:]))
    sizes = [one, state, *sizes]
    p.memory = dict(zip(KINDS, [*sizes, CONTEXT + FRAGMENTATION * sum(sizes)], strict=True))
    p.total = sum(p.memory.values())
    p.fits = p.total <= p.gib * GIB
    take_time(m, p)
    return p


def moments(m: Model, p: Plan) -> Iterator[Any]:
    """Bytes at the loss and in backward: gradients, gathered parameters, gradient buffers, activations, logits.

    Source: ``FSDPParamGroup`` in torch: the root stays whole until the end of backward, which gathers the next or
    copies; the input of a reduce-scatter lives until the next one's; DDP has buckets. Blocks keep the inputs of
    operators (arXiv:2205.05198, 4). ``ForCausalLMLoss``: log-softmax and two gradients in float32. A block's gradients
    and activations are taken to live at once.
    """
    low, n, layers, ddp, token = p.low, p.shards, m.layers, p.strategy == "ddp", p.tokens / p.tp
    block, reduce, done = p.padded / layers, p.stored * (n > 1), p.stored * p.padded / n * (1 - p.offload)
    live = token * (m.low * low + m.full * 4 + 2 * low * m.hidden * layers * (p.tp - 1))
    inputs = token * low * m.hidden * layers
    kept = {"none": live, "selective": inputs + token * low * m.products, "full": inputs}[p.recompute]
    live += token * low * m.low / 2
    grads = p.stored * p.shard * ddp
    head, logits = low * m.vocab * m.hidden / p.tp, token * m.vocab / p.chunks
    unit, rest = low * (n > 1 or low < p.stored), p.padded / (p.small or math.inf)  # gathered, or cast on one GPU
    whole = unit * (p.root + block + rest * (1 - 1 / layers))
    yield "loss", grads, whole, grads, kept + 4 * token * m.hidden * low, 12 * logits
    for i in range(layers):
        left, ahead = 1 - (i + 1) / layers, block * (p.small != 1 and n > 1)
        whole = unit * (p.root + block + ahead + rest * i / layers)
        buffers = grads if ddp else low * p.whole / layers + head + reduce * block * (left > 0)
        acts = (kept * (i + (p.recompute != "none")) + live) / layers
        yield f"backward, block {i}", grads or done * left, whole, buffers, acts, 0
    ends = low * p.root * (n > 1) + 2 * head * m.tied + reduce * block, reduce * p.root
    yield "backward, root", grads or done, 0, grads if ddp else low * p.root + max(ends), 0, 0


def take_time(m: Model, p: Plan) -> None:
    """Estimate a step; what FSDP sends hides under computation.

    Source: ZeRO, arXiv:1910.02054, 7: rings send (n - 1) / n of a gathered tensor, all-reduce twice that; sequence
    parallelism, arXiv:2205.05198, 4: the residual stream eight times a block; PaLM, arXiv:2204.02311, B: six operations
    a parameter and token, and half of attention.
    """
    n, small, copies, stream = p.shards, p.small or p.shards, p.ranks // p.shards, p.tokens * p.low * m.layers
    sent = [
        ((p.low + p.stored) * p.shard * (n - 1), n),
        (p.low * p.shard * n * (1 - 1 / small), small),
        (p.stored * p.shard * 2 * (1 - 1 / copies), p.ranks),
        (8 * stream * m.hidden * (1 - 1 / p.tp), 1),
        (6 * stream * m.kv / p.tp * (p.cp - 1), p.cp),
    ]
    seconds = [size / 1e9 / EFFICIENCY / p.links[span * p.tp > p.node] for size, span in sent]
    flops = 6 * p.tokens / p.tp * (m.active + p.seq * m.q * m.layers) * (p.low / 2)
    flops *= 4 / 3 if p.recompute == "full" else 1
    p.sent, p.sending, p.compute = sum(size for size, _ in sent), sum(seconds), flops / (p.tflops * 1e12 * MFU)
    p.seconds = max(p.compute, sum(seconds[:3])) + sum(seconds[3:]) + 3 * p.host / HOST
    p.speed = p.tokens * p.ranks / p.seconds  # tokens a second of all GPUs


def search(m: Model, p: Plan, names: list[str], most: int) -> list[Plan]:
    """Plans that fit with at most ``most`` settings changed: the fewest first or, where all may be, the fastest."""
    axes = [dict.fromkeys((p.settings[name], *LADDERS[name])) for name in names]
    best = {}
    for values in product(*axes):
        change = {k: v for k, v in zip(names, values, strict=True) if v != p.settings[k]}
        with suppress(PlanError):
            if len(change) <= most and (q := make_plan(m, p.settings | change)).fits:
                q.order = len(change) * (most < len(names)), -q.speed / q.gpus, len(change), q.total
                same = q.strategy, q.recompute, q.tp, q.cp
                best[same] = min(best.get(same, q), q, key=lambda q: q.order)
    return sorted(best.values(), key=lambda q: q.order)[:10]


def described(p: Plan) -> str:
    """The options that differ from the defaults."""
    some = (f"--{k} {v}" for k, v in p.settings.items() if k == "strategy" or v != SETTINGS[k][0])
    return " ".join(some).replace(" True", "")


def show(fits: bool, *rows: list[str]) -> None:
    """Print padded cells, the head first; in a terminal by rich, if installed."""
    with suppress(ImportError):
        if sys.stdout.isatty():
            from rich import get_console, table

            drawn = table.Table(*rows[0])
            for row in rows[1:]:
                drawn.add_row(*row)
            drawn.columns[-1].style = "green" if fits else "red"
            return get_console().print(drawn)
    print(*map("  ".join, rows), sep="\n")


def show_plans(plans: list[Plan]) -> None:
    """Print plans, one a line."""
    rows = [["   GiB", "tokens/s", "seconds", "sending", "GB sent", "settings"]]
    for p in plans:
        times = [f"{number:7.3g}" for number in (p.seconds, p.sending, p.sent / 1e9)]
        rows += [[f"{p.total / GIB:6.1f}", f"{p.speed:8,.0f}", *times, described(p)]]
    show(all(p.fits for p in plans), *rows)


def report(p: Plan) -> None:
    """Print a plan's memory by kind."""
    line = "{:>24} {:7.2f}".format
    rows = [[line(kind, size / GIB), "#" * int(40 * size / p.total)] for kind, size in p.memory.items()]
    rows += [[line("total", p.total / GIB), f"of {p.gib:g}: it {'fits' if p.fits else 'does NOT fit'}"]]
    rows += [[line("host memory of a node", p.host / GIB)]]
    show(p.fits, [f"A GPU at its peak, {p.moment}, in GiB"], *rows)
    print()
    show_plans([p])


def draw(path: Path, m: Model, plan: Plan) -> None:
    """Stacked bars of each strategy, cut at 1.5 times the GPU's memory; in pixels."""
    title = wrap(f"{m.name}, a GPU at its peak, in GiB: {described(plan)}", 105)
    y = top = 70 + 20 * len(title)
    bars, texts, limit = [], [(24, 36 + 20 * row, words) for row, words in enumerate(title)], 640
    for name in dict.fromkeys((*LADDERS["strategy"], plan.strategy)):
        with suppress(PlanError):
            p, x = make_plan(m, plan.settings | {"strategy": name}), 190
            texts += [(24, y + 20, f"{name}: {p.total / GIB:,.1f} GiB")]
            for kind, size in p.memory.items():
                end, label = min(x + 450 * size / GIB / p.gib, 865), f"{size / GIB:.1f}"
                bars += [(x, y, end - x, 30, KINDS[kind])]
                after = x + 10 * len(label)
                if after < end and not x < limit < after:  # no line goes through a number
                    texts += [(x + 5, y + 20, label)]
                x = end
            y += 46
    bars += [(limit, top - 12, 2, y - top + 6, "#c0262d")]
    texts += [(limit, top - 20, f"GPU: {plan.gib:g} GiB")]
    for (below, x), kind in zip(product((24, 48), range(24, 884, 215)), KINDS, strict=True):
        bars += [(x, y + below - 12, 14, 14, KINDS[kind])]
        texts += [(x + 21, y + below, kind)]
    write(path, y + 70, bars, texts)


def write(path: Path, height: int, bars: list[Any], texts: list[Any]) -> None:
    """Write PNG with matplotlib or, by hand, SVG."""
    if path.suffix.lower() == ".png":
        try:
            from matplotlib.figure import Figure  # without pyplot: Agg, no window
        except ImportError as error:
            raise PlanError(f"{error}; install matplotlib or let --plot end with .svg") from error
        axes = Figure((9, height / 100)).add_axes((0, 0, 1, 1), xlim=(0, 900), ylim=(height, 0), frame_on=False)
        for x, y, *size, colour in bars:
            axes.barh(y, *size, x, align="edge", color=colour)
        for x, y, words in texts:
            axes.text(x, y, words, size=9.4, parse_math=False)
        return axes.figure.savefig(path, dpi=200)
    bar = "<rect x='{:.1f}' y='{}' width='{:.1f}' height='{}' fill='{}'/>".format
    shapes = [bar(*each) for each in [(0, 0, 900, height, "#fff"), *bars]]
    shapes += [f"<text x='{x:.1f}' y='{y}'>{escape(words)}</text>" for x, y, words in texts]
    root = f"<svg xmlns='http://www.w3.org/2000/svg' width='900' height='{height}' font-family='Arial' font-size='13'>"
    path.write_text("\n".join([root, *shapes, "</svg>\n"]))


def choose_model(given: Plan) -> Model:
    """The model that the command line names or describes."""
    data = {"vocab": 128256, "heads": max((given.hidden or 0) // 128, 1)}
    if given.model in PRESETS:
        data = dict(zip(("model_type", *rows(NAMES)), PRESETS[given.model], strict=False))
    elif given.model:
        path = Path(given.model)
        path = path / "config.json" if path.is_dir() else path
        try:
            data = {**json.loads(path.read_text())}
        except (OSError, TypeError, ValueError) as error:
            raise PlanError(f"{path}: {error}; give a config.json or {', '.join(PRESETS)}") from error
    elif not (given.layers and given.hidden):
        raise PlanError("no model; give a preset, config.json, or --layers and --hidden")
    data |= {name: value for name in rows(NAMES) if (value := getattr(given, name)) is not None}
    name, widths = given.model or "model", ("ffn", "expert")
    if given.params:  # grow evenly with the MLPs' width
        one, two = (read_model(data | dict.fromkeys(widths, n), name).parameters for n in (1, 2))
        data |= dict.fromkeys(widths, 1 + int(given.params - one) // (two - one))
    return read_model(data, name)


def parse() -> Plan:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("model", nargs="?", help=f"config.json, its folder, or {', '.join(PRESETS)}")
    add("--params", type=float, help="all parameters; MLPs are made to fit")
    for name in rows(NAMES):
        add(f"--{name}", type=int)
    for name, (default, about, *choices) in SETTINGS.items():
        kind = {"action": "store_true"} if default is False else {"type": type(default), "choices": choices or None}
        add(f"--{name}", default=default, help=f"{about} ({default})", **kind)
    add("--search", action="store_true", help="find the fastest that fits")
    add("--plot", type=Path, help="SVG, or PNG by matplotlib")
    add("--json", action="store_true", help="JSON; bytes, seconds")
    return parser.parse_args()


def run(given: Plan) -> int:
    """Do what the command line asks; the exit status."""
    m = choose_model(given)
    p = make_plan(m, {name: getattr(given, name) for name in SETTINGS})
    if given.plot:
        draw(given.plot, m, p)
    names, wanted = [*LADDERS], given.search or not p.fits
    found = search(m, p, *((names[:7], 7) if given.search else (names, 3))) if wanted else []
    if given.json:
        print(json.dumps({"model": vars(m), "plan": vars(p), "found": [*map(vars, found)]}, indent=1))
    else:
        print(f"{m.name}: {m.parameters:,} parameters on {p.gpus} x {p.gpu}\n{m.note}")
        report(p)
        if wanted:
            print("What fits" if found else "Nothing fits: take more GPUs")
            show_plans(found)
    return int(not (found if given.search else p.fits))


if __name__ == "__main__":
    try:
        sys.exit(run(parse()))
    except (PlanError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)

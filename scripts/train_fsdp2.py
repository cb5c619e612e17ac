"""Train a Hugging Face causal language model with FSDP2 (`fully_shard`); needs torch and transformers only.

    torchrun --standalone --nproc-per-node 8 train_fsdp2.py --model FOLDER --data TEXT --steps 1000

The same command resumes from the newest checkpoint, also on another number of ranks. Without a GPU it runs on
CPUs, to try it out. `train()` is the story; the functions follow in the order of their calls.
"""

import json
import math
import os
import resource
import shutil
import signal
import sys
import time
from argparse import ArgumentParser, Namespace
from array import array
from collections.abc import Callable
from datetime import timedelta
from fnmatch import filter as matching
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict as dcp_state
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts, noop_context_fn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaConfig

OPTIONS: dict[str, tuple[Any, ...]] = {  # name: default, help, words to choose from
    "model": ("", "Hugging Face folder; none: a tiny random Llama"),
    "from-scratch": (False, "random weights, the config of --model"),
    "data": (os.__file__, "plain text, or .jsonl: lines with `text`"),
    "checkpoint-dir": ("checkpoints", "seen by all nodes; also for tokens and export"),
    "steps": (20, "steps in all"),
    "batch-size": (0, "sequences a step; 0: micro-batch x ranks"),
    "micro-batch": (2, "sequences a rank takes at once"),
    "seq-len": (128, "tokens of a sequence"),
    "seed": (0, "of weights, data order and dropout"),
    "lr": (3e-4, "peak learning rate"),
    "warmup": (5, "steps of linear warm-up; then a cosine to a tenth"),
    "weight-decay": (0.1, "of matrices; norms, biases: none"),
    "clip": (1.0, "largest gradient norm; 0: no limit"),
    "freeze": ("", "patterns of parameters to freeze, `!` takes back: '*,!*lora*'"),
    "block-class": ("", "class to shard by; none: the model's own word"),
    "dtype": ("bf16", "type of compute; the rest stays fp32", "bf16", "fp32"),
    "replicas": (1, "HSDP: copies of the sharded model"),
    "reshard": ("true", "after a block's forward: true, false or to N ranks"),
    "prefetch": (0, "blocks gathered ahead explicitly; 0: FSDP2's own one"),
    "recompute": ("none", "activation checkpointing", "none", "full", "selective"),
    "compile": (False, "torch.compile every block"),
    "save-every": (100, "steps to a checkpoint; 0: none"),
    "keep": (2, "checkpoints kept"),
    "resume": ("auto", "auto, none or a checkpoint"),
    "export": ("fp32", "type of the model", "fp32", "bf16", "none"),
    "metrics": ("", "file for a JSON line a step"),
    "on-nonfinite": ("stop", "loss or gradient", "stop", "skip"),
    "timeout": (600, "seconds that a collective may hang"),
}
RANK, WORLD_SIZE = int(os.environ.get("RANK", "-1")), int(os.environ.get("WORLD_SIZE", "1"))  # as torchrun says
ATTEMPT = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
IGNORE = -100  # cross_entropy's label without loss
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
# Dense bf16 FLOP/s by a part of the device's name (first match), from NVIDIA's data sheets.
PEAK_FLOPS = {"B200": 2.25e15, "H200": 989e12, "H100 PCIe": 756e12, "H100": 989e12, "A100": 312e12}


class TrainingError(Exception):
    """The work failed: what, where, and what to do."""


class UsageError(TrainingError):
    """The command asks for the impossible."""


@record
def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    for name, (default, text, *words) in OPTIONS.items():
        kind = {"action": "store_true"} if default is False else {"type": type(default), "choices": words or None}
        parser.add_argument(f"--{name}", default=default, help=text + (" [%(default)s]" if default else ""), **kind)
    try:
        train(parser.parse_args())
    except TrainingError as error:
        if RANK <= 0:
            print(f"{Path(__file__).name}: {error}", file=sys.stderr)
        raise SystemExit(2 if isinstance(error, UsageError) else 1) from None
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def train(args: Namespace) -> None:
    device = start_process_group(args)
    mesh, rounds = build_mesh(args, device), count_rounds(args)
    path = on_rank0(f"--data {args.data}", lambda: write_tokens(args))
    tokens = torch.from_file(path, size=Path(path).stat().st_size // 4, dtype=torch.int32)  # mapped, not read
    config = on_rank0(f"--model {args.model}", lambda: load_config(args.model))
    with torch.device("meta"):
        model = new_model(config)
    freeze(model, args.freeze)
    about, flops = describe(model, tokens, args), flops_per_token(model, args.seq_len)
    blocks = find_blocks(model, args.block_class)
    for block in blocks:
        wrap_forward(block, args)
    shard(model, blocks, mesh, args)
    materialise(model, device)
    load_weights(model, config, args)
    optimizer = build_optimizer(model, args)
    checkpoints = Checkpoints(model, optimizer, about, args)
    step, position = checkpoints.resume({"step": 0, "position": 0}).values()

    signals, stop, then = note_signals(), False, time.perf_counter()
    while step < args.steps and not stop:
        torch.manual_seed(hash((args.seed, step, RANK)))  # dropout is the same after a resume
        batches = [micro_batch(tokens, position, turn, args, device) for turn in range(rounds)]
        loss, num_tokens = forward_backward(model, batches)
        norm = clip_gradients(model, args.clip)
        losses, grad_norm, num, stop = agree(loss, norm, num_tokens, bool(signals))
        step, position = step + 1, position + rounds * args.micro_batch * WORLD_SIZE
        line = {"step": step, "loss": sum(losses) / num, "grad_norm": grad_norm, "lr": learning_rate(step, args)}
        if all(map(math.isfinite, [*losses, grad_norm])):
            for group in optimizer.param_groups:
                group["lr"] = line["lr"]
            optimizer.step()
        elif args.on_nonfinite == "skip":
            line["skipped"] = 1
        else:
            ranks = [rank for rank, loss in enumerate(losses) if not math.isfinite(loss)]
            what = f"step {step} is not finite: loss of ranks {ranks}, gradient norm {grad_norm}"
            raise TrainingError(f"{what}; {checkpoints.wait()}; lower --lr or give --on-nonfinite skip")
        optimizer.zero_grad()
        line["tokens_per_second"] = num / WORLD_SIZE / (time.perf_counter() - then)
        then = time.perf_counter()
        log(line, flops, args)
        if stop or (args.save_every and (step % args.save_every == 0 or step == args.steps)):
            checkpoints.save({"step": step, "position": position})

    newest = checkpoints.wait()
    if step < args.steps:
        say(f"stopped by a signal after step {step}; {newest}")
    elif args.export != "none":
        export(model, config, args)


# -- process group, mesh, batch --


def start_process_group(args: Namespace) -> torch.device:
    if RANK < 0:
        raise UsageError(f"start it by `torchrun --nproc-per-node 2 {Path(__file__).name}`")
    ranks, gpus = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
    if 0 < gpus < ranks:
        raise UsageError(f"{ranks} ranks on a node with {gpus} GPUs; give torchrun --nproc-per-node {gpus}")
    device = torch.device(f"cuda:{os.environ.get('LOCAL_RANK')}" if gpus else "cpu")
    if gpus:
        torch.cuda.set_device(device)  # before NCCL starts on the current device
    else:
        say("no CUDA device: training on CPUs; FSDP2 of torch 2.6 cannot")
    timeout = timedelta(seconds=args.timeout)
    # torchrun may restart ranks on the store of those that died, with their old addresses.
    store = dist.PrefixStore(ATTEMPT, next(dist.rendezvous("env://", timeout=timeout))[0])
    backend = "cpu:gloo,cuda:nccl" if gpus else "gloo"  # gloo for what is on the host
    dist.init_process_group(backend, store=store, rank=RANK, world_size=WORLD_SIZE, timeout=timeout)
    return device


def build_mesh(args: Namespace, device: torch.device) -> dist.DeviceMesh:
    """All ranks share the model; or rows of neighbours do, inside a node, and the rows hold copies (HSDP)."""
    shards, rest = divmod(WORLD_SIZE, args.replicas)
    if rest:
        raise UsageError(f"--replicas {args.replicas} does not divide {WORLD_SIZE} ranks; give a divisor")
    parts = [str(n) for n in range(2, shards) if shards % n == 0]
    if args.reshard not in ("true", "false", *parts):
        raise UsageError(f"--reshard {args.reshard} on {shards} ranks; give true, false or one of {parts}")
    sizes = {"replicate": args.replicas, "shard": shards} if args.replicas > 1 else {"shard": shards}
    return dist.init_device_mesh(device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def count_rounds(args: Namespace) -> int:
    """The micro-batches that a rank takes for a step."""
    at_once = args.micro_batch * WORLD_SIZE
    rounds, rest = divmod(args.batch_size or at_once, at_once)
    if rest:
        raise UsageError(f"--batch-size {args.batch_size}: give a multiple of {at_once}, --micro-batch x ranks")
    return rounds


def say(text: str) -> None:
    if RANK == 0:
        print(text, flush=True)


@lru_cache
def file_group() -> dist.ProcessGroup:
    """Where ranks wait for files, which may take longer than --timeout."""
    return dist.new_group(backend="gloo", timeout=timedelta(hours=24))


def on_rank0(what: str, work: Callable[[], Any]) -> Any:
    """What `work` gives on rank 0, for every rank; its error, too, so that none waits in vain."""
    result: list[Any] = [None]
    if RANK == 0:
        try:
            result = [work()]
        except (OSError, ValueError, KeyError) as error:
            result = [TrainingError(f"{what}: {type(error).__name__}: {' '.join(str(error).split())}")]
    dist.broadcast_object_list(result, src=0, group=file_group())
    if isinstance(result[0], TrainingError):
        raise result[0]
    return result[0]


# -- data --


def write_tokens(args: Namespace) -> str:
    """The file with the text's tokens, or bytes, as int32."""
    source, model, folder = Path(args.data), Path(args.model or "bytes"), Path(args.checkpoint_dir)
    stat = source.stat()
    path = folder / f"{model.name}-{source.name}-{stat.st_size}-{stat.st_mtime_ns}.int32"
    if path.is_file():
        return str(path)
    if not stat.st_size:
        raise ValueError("no text")
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(model) if any(model.glob("tokenizer*")) else None
    end = [(tokenizer and tokenizer.eos_token_id) or 0] if source.suffix == ".jsonl" else []  # of a document
    part = path.with_suffix(".part")
    with source.open(encoding="utf-8") as text, part.open("wb") as file:
        while lines := text.readlines(1 << 20):  # about a mebibyte at a time
            texts = [json.loads(line)["text"] for line in lines] if end else ["".join(lines)]
            for ids in tokenizer(texts, add_special_tokens=False).input_ids if tokenizer else map(str.encode, texts):
                array("i", [*ids, *end]).tofile(file)
    return str(part.replace(path))


@lru_cache(maxsize=2)
def epoch_order(num_sequences: int, seed: int) -> list[int]:
    return torch.randperm(num_sequences, generator=torch.Generator().manual_seed(seed)).tolist()


def micro_batch(tokens: Tensor, position: int, turn: int, args: Namespace, device: torch.device) -> Tensor:
    """[sequences, tokens + 1]: this rank's part of a turn of the step that begins at `position`.

    `position` counts sequences over all ranks and epochs: it means the same on any number of ranks. The text's last
    sequence is filled up with labels that do not count.
    """
    length, first = args.seq_len, position + (turn * WORLD_SIZE + RANK) * args.micro_batch
    num_sequences, rows = -(-(len(tokens) - 1) // length), []
    for i in range(first, first + args.micro_batch):
        epoch, index = divmod(i, num_sequences)
        start = epoch_order(num_sequences, args.seed * 1_000_003 + epoch)[index] * length
        row = tokens[start : start + length + 1].long()
        rows.append(nn.functional.pad(row, (0, length + 1 - len(row)), value=IGNORE))
    return torch.stack(rows).to(device, non_blocking=True)


# -- model --


def load_config(folder: str) -> Any:
    if folder:
        return AutoConfig.from_pretrained(Path(folder, "config.json").resolve(strict=True))  # no name on the hub
    sizes = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128}
    return LlamaConfig(**sizes, num_hidden_layers=4, num_attention_heads=4)


def new_model(config: Any) -> nn.Module:
    """In fp32: what AdamW adds to a weight may be too small for bf16."""
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).train()


def freeze(model: nn.Module, patterns: str) -> None:
    """Freeze by shell patterns, one after the other, while names are still the model's own."""
    named = dict(model.named_parameters())
    for pattern in filter(None, patterns.split(",")):
        names = matching(named, pattern.removeprefix("!"))
        if not names:
            raise UsageError(f"--freeze {pattern}: no parameter has such a name; one is {next(iter(named))}")
        for name in names:
            named[name].requires_grad_(pattern.startswith("!"))


def find_blocks(model: nn.Module, block_class: str) -> list[nn.Module]:
    """The transformer blocks: what is gathered at once."""
    names = [block_class] if block_class else list(model._no_split_modules or ())
    blocks = [module for module in model.modules() if type(module).__name__ in names]
    if not blocks:
        known = sorted({type(m[0]).__name__ for m in model.modules() if isinstance(m, nn.ModuleList)})
        raise UsageError(f"no block of class {names}; try --block-class with one of {known}")
    return blocks


def wrap_forward(block: nn.Module, args: Namespace) -> None:
    """Activation checkpointing, around it compile, around both (later) FSDP's hooks.

    It replaces only the block's `forward`: names stay, and FSDP's hooks stay out of graph and recomputation.
    """
    context_fn = noop_context_fn
    if args.recompute == "selective":  # keep the results of matrix products and attention, recompute the cheap rest
        aten = torch.ops.aten
        kept = [aten.mm.default, aten.addmm.default, aten.bmm.default]
        kept += [getattr(aten, name).default for name in dir(aten) if name.startswith("_scaled_dot_product")]
        context_fn = partial(create_selective_checkpoint_contexts, kept)
    if args.recompute != "none":
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, context_fn=context_fn)
    if args.compile:
        block.forward = torch.compile(block.forward)


def shard(model: nn.Module, blocks: list[nn.Module], mesh: dist.DeviceMesh, args: Namespace) -> None:
    """Blocks first, then the root, which owns what is left: the last norm, a tied embedding."""
    reshard: bool | int = int(args.reshard) if args.reshard.isdecimal() else args.reshard == "true"
    # Gradients are reduced in fp32: a sum over many ranks loses too much in bf16.
    policy = MixedPrecisionPolicy(param_dtype=DTYPES[args.dtype], reduce_dtype=torch.float32)
    unit = partial(fully_shard, mesh=mesh, mp_policy=policy)
    for block in blocks:
        unit(block, reshard_after_forward=reshard)
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if head.weight is not embedding.weight:  # large, so units of their own; tied, only the root can own the one
        unit(embedding, reshard_after_forward=reshard)
        unit(head, reshard_after_forward=False)  # backward begins with it
    unit(model)
    for i, block in enumerate(blocks if args.prefetch else ()):
        block.set_modules_to_forward_prefetch(blocks[i + 1 : i + 1 + args.prefetch])
        block.set_modules_to_backward_prefetch(list(reversed(blocks[max(i - args.prefetch, 0) : i])))


@torch.no_grad()
def materialise(model: nn.Module, device: torch.device) -> None:
    """Memory for this rank's shards, poisoned with NaN to show what is never filled."""
    model.to_empty(device=device)
    for tensor in [*model.parameters(), *model.buffers()]:
        tensor.fill_(math.nan if tensor.is_floating_point() else -1)


@torch.no_grad()
def load_weights(model: nn.Module, config: Any, args: Namespace) -> None:
    """Rank 0 reads or draws the weights on its host and deals out shards, a tensor at a time."""
    weights: dict[str, Tensor] = {}

    def read() -> list[Tensor]:
        torch.manual_seed(args.seed)
        random = args.from_scratch or not args.model
        whole = new_model(config) if random else AutoModelForCausalLM.from_pretrained(args.model, dtype="float32")
        weights.update(whole.state_dict())
        return list(whole.buffers())

    buffers = on_rank0(f"--model {args.model}", read)  # rotary tables: no state dict has them
    options = dcp_state.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    dcp_state.set_model_state_dict(model, weights, options=options)
    for mine, buffer in zip(model.buffers(), buffers, strict=True):
        mine.copy_(buffer)
    named, ranks = [*model.named_parameters(), *model.named_buffers()], [None] * WORLD_SIZE
    nan = [name for name, t in named if (t.to_local() if isinstance(t, DTensor) else t).isnan().any()]
    dist.all_gather_object(ranks, nan, group=file_group())
    if any(ranks):
        raise TrainingError(f"NaN in the weights, or never filled, by rank: {ranks}")


def build_optimizer(model: nn.Module, args: Namespace) -> torch.optim.Optimizer:
    """Fused AdamW; norms and biases have no decay."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [([p for p in trained if p.ndim > 1], args.weight_decay), ([p for p in trained if p.ndim <= 1], 0.0)]
    groups = [{"params": params, "weight_decay": decay} for params, decay in groups if params]
    return torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95), fused=True)


def learning_rate(step: int, args: Namespace) -> float:
    """Linear warm-up, then a cosine to a tenth of the peak; steps count from 1."""
    if step <= args.warmup:
        return args.lr * step / args.warmup
    done = (step - args.warmup) / (args.steps - args.warmup)
    return args.lr * (0.55 + 0.45 * math.cos(math.pi * done))


# -- checkpoints --


class Checkpoints:
    """Folders `step-00000100`, whole once they have `.metadata`: torch writes it after the data of all ranks.

    No random states: each step is seeded from seed, step and rank, the data's order follows from seed and position.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, about: str, args: Namespace) -> None:
        self.model, self.optimizer, self.about, self.args = model, optimizer, about, args
        self.folder, self.pending = Path(args.checkpoint_dir), None

    def whole(self) -> list[Path]:
        return sorted(path.parent for path in self.folder.glob("step-*/.metadata"))  # the oldest first

    def save(self, run: dict[str, Any]) -> None:
        """Copy the state to the host; a thread writes the copy while training goes on."""
        self.wait()
        weights, moments = dcp_state.get_state_dict(self.model, self.optimizer)
        state = {"model": weights, "optimizer": moments, "run": {**run, "about": self.about}}
        path = self.folder / f"step-{run['step']:08d}"
        self.pending = dcp.async_save(state, checkpoint_id=path, process_group=file_group())
        if not hasattr(dcp.staging, "DefaultStager"):
            self.wait()  # torch 2.6 does not copy what is on the host

    def wait(self) -> str:
        """Until the last one is whole, then drop the oldest; names the newest."""
        error, whole = self.pending and self.pending.exception(), self.whole()
        newest = f"last checkpoint: {whole[-1] if whole else 'none'}"
        if error:
            reason, free = str(error).strip().rpartition("\n")[2], shutil.disk_usage(self.folder).free >> 20
            raise TrainingError(f"nothing saved: {reason}; {newest}; make room in {self.folder}: {free} MiB free")
        for old in whole[: -self.args.keep] if RANK == 0 else ():
            (old / ".metadata").unlink()
            shutil.rmtree(old)
        return newest

    def choose(self) -> str:
        """On rank 0: the checkpoint to take up, or ""; half-written ones are removed."""
        wanted, whole = self.args.resume, self.whole()
        for half in set(self.folder.glob("step-*")) - set(whole):
            shutil.rmtree(half)
        if whole and wanted != "auto" and ATTEMPT == "0":
            raise ValueError(f"{whole[-1]} is there; give another --checkpoint-dir")
        if whole or wanted in ("auto", "none"):
            return str(whole[-1]) if whole else ""
        if not Path(wanted, ".metadata").is_file():
            raise ValueError("no whole checkpoint")
        return wanted

    def resume(self, run: dict[str, Any]) -> dict[str, Any]:
        """Load what --resume says; gives `run` as it was saved."""
        if path := on_rank0(f"--resume {self.args.resume}", self.choose):
            load, run = partial(dcp.load, checkpoint_id=path, process_group=file_group()), {**run, "about": ""}
            load({"run": run})
            if (about := run.pop("about")) != self.about:
                raise UsageError(f"{path} is of {about}, not of {self.about}; give another --checkpoint-dir")
            weights, moments = dcp_state.get_state_dict(self.model, self.optimizer)
            load({"model": weights, "optimizer": moments})
            dcp_state.set_state_dict(self.model, self.optimizer, model_state_dict=weights, optim_state_dict=moments)
            say(f"resuming from {path}: {run}")
        return run


def describe(model: nn.Module, tokens: Tensor, args: Namespace) -> str:
    """What must be the same to resume."""
    sizes = f"{model.num_parameters():,} parameters ({model.num_parameters(only_trainable=True):,} trained)"
    return f"a {model.config.model_type} of {sizes}, {len(tokens):,} tokens by {args.seq_len}, seed {args.seed}"


# -- one step --


def note_signals() -> list[int]:
    """A preemption's, only noted, since a collective may be under way."""
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda number, _frame: signals.append(number))
    return signals


def forward_backward(model: nn.Module, batches: list[Tensor]) -> tuple[Tensor, Tensor]:
    """This rank's sum of losses, and the tokens of all ranks.

    FSDP averages gradients over ranks, which may hold different numbers of tokens. So the loss is a sum, times the
    ranks (the average undone), over the tokens of all.
    """
    num_tokens = sum((batch[:, 1:] != IGNORE).sum() for batch in batches)
    dist.all_reduce(num_tokens)
    total = torch.zeros((), device=num_tokens.device)
    for turn, batch in enumerate(batches, 1):
        model.set_requires_gradient_sync(turn == len(batches))  # reduced once, by the last turn
        logits = model(input_ids=batch[:, :-1].clamp(min=0), use_cache=False).logits.float()
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), reduction="sum")
        (loss * (WORLD_SIZE / num_tokens)).backward()
        total += loss.detach()
    return total, num_tokens


def clip_gradients(model: nn.Module, limit: float) -> Tensor:
    """Scale gradients down to a global norm of `limit`; gives the norm before."""
    return nn.utils.clip_grad_norm_(model.parameters(), limit or math.inf).full_tensor()


def agree(loss: Tensor, norm: Tensor, num_tokens: Tensor, stop: bool) -> tuple[list[float], float, int, bool]:
    """Each rank's loss, the norm, the tokens, whether any rank must stop: the only wait for the device."""
    report = torch.zeros(WORLD_SIZE + 3, dtype=torch.float64, device=loss.device)
    report[RANK], report[-3] = loss, stop
    dist.all_reduce(report)
    report[-2], report[-1] = norm, num_tokens
    *losses, stops, grad_norm, num = report.tolist()
    return losses, grad_norm, int(num), stops > 0


# -- metrics, export --


def flops_per_token(model: nn.Module, seq_len: int) -> float:
    """6 N + 12 L H T (PaLM, arXiv 2204.02311, appendix B); N without an untied embedding."""
    config = model.config.get_text_config()
    look_up = 0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size
    return 6 * (model.num_parameters() - look_up) + 12 * config.num_hidden_layers * config.hidden_size * seq_len


def log(line: dict[str, float], flops: float, args: Namespace) -> None:
    """A step's line on rank 0, to read and as JSON; of a repeated step the last one counts."""
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    line["memory"] = torch.cuda.max_memory_allocated() or host  # peak bytes
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    if peak := next((peak for part, peak in PEAK_FLOPS.items() if part in name), 0):
        line["mfu"] = line["tokens_per_second"] * flops / peak
    say("  ".join(f"{name} {value:.5g}" for name, value in line.items()))
    if args.metrics and RANK == 0:
        with Path(args.metrics).open("a") as file:  # JSON knows no NaN
            file.write(json.dumps({k: v if math.isfinite(v) else None for k, v in line.items()}) + "\n")


def export(model: nn.Module, config: Any, args: Namespace) -> None:
    folder, dtype = Path(args.checkpoint_dir, "export"), DTYPES[args.export]
    with torch.device("meta"):  # for class, names and ties
        plain = new_model(config).to(dtype)
    options = dcp_state.StateDictOptions(full_state_dict=True, cpu_offload=True)  # collected on rank 0's host
    weights = dcp_state.get_model_state_dict(model, options=options)
    weights = {name: weights.pop(name).to(dtype) for name in [*weights]}
    on_rank0(str(folder), lambda: plain.save_pretrained(folder, state_dict=weights))
    say(f"exported to {folder}")


if __name__ == "__main__":
    main()

"""Train a Hugging Face causal language model in mixed precision (FSDP2), and see what a policy really does.

    torchrun --standalone --nproc-per-node 8 train_mixed_precision.py --keep-fp32 norms --drift-steps 20

Which types there are, and who sets them:
- parameters, gradients and AdamW's state as stored: fp32, always; that is what a small update needs;
- parameters as gathered for compute: `--dtype`, the policy's param_dtype, which inputs are cast to as well;
- the reduction of gradients: `--reduce-dtype`; a sum over many ranks loses bits in bf16, overflows in fp16;
- what the root unit hands on, the logits: `--output-dtype`;
- buffers: FSDP2 leaves them alone (FSDP1 has buffer_dtype); `--buffer-dtype` shows why that is good;
- `--keep-fp32 norms|head|both` gives these modules a unit and a policy of their own;
- `--autocast`: the other way, parameters are gathered in fp32 and each operation casts; twice the traffic.
fp16 has too small a range for gradients: `--dtype fp16` scales the loss, and skips steps that overflow.

The first step prints the types as they are. `--drift-steps N` trains a second model in fp32 beside the first N
steps, and tells how far loss and gradient norm are off. `train()` is the story. Shapes: B sequences of a
micro-batch, T tokens of a sequence, V entries of the vocabulary.
"""
# ruff: noqa: ANN401

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
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict as dcp_state
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy, pad
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaConfig

OPTIONS: dict[str, tuple[Any, ...]] = {  # name: default, help, words to choose from
    "model": ("", "Hugging Face folder (default: a tiny random Llama)"),
    "from-scratch": (False, "random weights, only the config of --model"),
    "data": (os.__file__, "plain text, or .jsonl: lines with `text`"),
    "checkpoint-dir": ("checkpoints", "for checkpoints, tokens and export; all nodes see it"),
    "steps": (20, "optimizer steps in all"),
    "batch-size": (0, "sequences a step over all ranks; 0: micro-batch x ranks"),
    "micro-batch": (2, "sequences a rank takes at once; more are accumulated"),
    "seq-len": (128, "tokens of a sequence"),
    "seed": (0, "of random weights, data order and dropout"),
    "lr": (3e-4, "peak learning rate"),
    "warmup": (5, "steps of linear warm-up; then a cosine to a tenth"),
    "weight-decay": (0.1, "of matrices; norms and biases have none"),
    "clip": (1.0, "largest global gradient norm; 0: no limit"),
    "block-class": ("", "class to shard by (default: the model's own word)"),
    "dtype": ("bf16", "of parameters in compute", "fp32", "bf16", "fp16"),
    "reduce-dtype": ("fp32", "of the reduction of gradients", "fp32", "bf16", "fp16"),
    "output-dtype": ("fp32", "of the logits", "fp32", "bf16", "fp16"),
    "buffer-dtype": ("fp32", "of buffers, such as rotary tables", "fp32", "bf16", "fp16"),
    "keep-fp32": ("none", "modules that compute in fp32", "none", "norms", "head", "both"),
    "autocast": (False, "torch.autocast to --dtype over parameters in fp32, no policy"),
    "loss-scale": (2.0**16, "first loss scale, for fp16"),
    "drift-steps": (0, "steps to train in fp32 as well, to compare"),
    "save-every": (100, "steps from checkpoint to checkpoint; 0: none"),
    "keep": (2, "checkpoints to keep"),
    "resume": ("auto", "auto, none or the path of a checkpoint"),
    "export": ("fp32", "type of the final export", "fp32", "bf16", "none"),
    "metrics": ("", "file for a JSON line a step"),
    "on-nonfinite": ("stop", "loss or gradient not finite", "stop", "skip"),
    "timeout": (600, "seconds until a hanging collective ends the job"),
}
RANK, WORLD_SIZE = int(os.environ.get("RANK", "-1")), int(os.environ.get("WORLD_SIZE", "1"))  # as torchrun says
IGNORE = -100  # a label that has no loss
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# Dense bf16 FLOP/s by a part of the device's name, first match counts; from NVIDIA's data sheets.
PEAK_FLOPS = {"B200": 2.25e15, "H200": 989e12, "H100 PCIe": 756e12, "H100": 989e12, "A100": 312e12}


class TrainingError(Exception):
    """The work failed: what, where, and what to do."""


class UsageError(TrainingError):
    """The command asks for what cannot be done."""


@record
def main() -> None:
    """Train; one line of rank 0 for what a person can mend; no process group is left behind."""
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, (default, text, *words) in OPTIONS.items():
        kind = {"action": "store_true"} if default is False else {"type": type(default), "choices": words or None}
        parser.add_argument(f"--{name}", default=default, help=text + (" [%(default)s]" if default else ""), **kind)
    try:
        train(parser.parse_args())
    except TrainingError as error:
        if RANK <= 0:
            print(f"{Path(__file__).name}: {error}", file=sys.stderr, flush=True)
        raise SystemExit(2 if isinstance(error, UsageError) else 1) from None
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def train(args: Namespace) -> None:
    """The whole run."""
    device = start_process_group(args)
    mesh, rounds = init_device_mesh(device.type, (WORLD_SIZE,)), count_rounds(args)
    path = on_rank0(f"--data {args.data}", lambda: write_tokens(args))
    tokens = torch.from_file(path, size=Path(path).stat().st_size // 4, dtype=torch.int32)  # mapped, not read
    config = on_rank0(f"--model {args.model}", lambda: load_config(args.model))
    model = build_model(config, mesh, args)
    optimizer, scaler = build_optimizer(model, args), build_scaler(device, args)
    checkpoints = Checkpoints(model, optimizer, describe(model, tokens, args), args)
    run = checkpoints.resume({"step": 0, "position": 0, "scaler": json.dumps(scaler.state_dict())})
    step, position = run["step"], run["position"]
    scaler.load_state_dict(json.loads(run["scaler"]))
    exact = Exact(config, mesh, args) if args.drift_steps and step == 0 else None
    types, flops = TypesSeen(model), flops_per_token(model, args.seq_len)

    signals, stop, then = note_signals(), False, time.perf_counter()
    while step < args.steps and not stop:
        torch.manual_seed(hash((args.seed, step, RANK)))  # dropout is the same after a resume
        batches = [micro_batch(tokens, position, turn, args, device) for turn in range(rounds)]
        num_tokens = count_tokens(batches)
        with types or nullcontext():
            loss = forward_backward(model, batches, num_tokens, scaler, args)
        types = types and types.report()  # once: looking at every operation costs time
        scaler.unscale_(optimizer)  # before clipping, which needs the true norm; knows DTensors: all ranks skip or none
        norm = clip_gradients(model, args.clip)
        losses, grad_norm, num, stop = agree(loss, norm, num_tokens, bool(signals))
        step, position = step + 1, position + rounds * args.micro_batch * WORLD_SIZE
        line = {"step": step, "loss": sum(losses) / num, "grad_norm": grad_norm, "lr": learning_rate(step, args)}
        overflow = scaler.is_enabled() and all(map(math.isfinite, losses)) and not math.isfinite(grad_norm)
        if overflow or all(map(math.isfinite, [*losses, grad_norm])):
            for group in optimizer.param_groups:
                group["lr"] = line["lr"]
            scaler.step(optimizer)  # not where a gradient overflowed
            line |= {"skipped": 1} if overflow else {}
        elif args.on_nonfinite == "skip":
            line["skipped"] = 1
        else:
            raise nonfinite(step, losses, grad_norm, checkpoints.wait())
        scaler.update()
        line |= {"loss_scale": scaler.get_scale()} if scaler.is_enabled() else {}
        optimizer.zero_grad()
        line |= exact.drift(line, batches) if exact and step <= args.drift_steps else {}
        line["tokens_per_second"] = num / WORLD_SIZE / (time.perf_counter() - then)
        then = time.perf_counter()
        log(line, flops, args)
        if stop or (args.save_every and (step % args.save_every == 0 or step == args.steps)):
            checkpoints.save({"step": step, "position": position, "scaler": json.dumps(scaler.state_dict())})

    newest = checkpoints.wait()
    if step < args.steps:
        say(f"stopped by a signal after step {step}; {newest}")
    elif args.export != "none":
        export(model, config, args)


# -- types and drift --


class TypesSeen(TorchDispatchMode):
    """Looks, during the first step, at the types that parameters, gradients, reductions and outputs really have."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.seen = model, {}
        leaves = [(name, m) for name, m in model.named_modules() if list(m.parameters(recurse=False))]
        self.hooks = [module.register_forward_hook(partial(self.look, name)) for name, module in leaves]

    def look(self, name: str, module: nn.Module, _inputs: object, output: Tensor) -> None:
        """A forward hook that sees a module's parameter as gathered and what it hands on."""
        kind = f"{type(module).__name__} {name.rpartition('.')[2]}"
        self.seen[f"{kind}: parameter in compute"] = next(module.parameters(recurse=False)).dtype
        self.seen[f"{kind}: output"] = output.dtype

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Every operation passes here; those that reduce gradients are noted."""
        if "reduce_scatter" in func.__name__:
            self.seen["gradients: reduction"] = next(t for t in tree_leaves(args) if isinstance(t, Tensor)).dtype
        return func(*args, **(kwargs or {}))

    def report(self) -> None:
        """Print them, and look no more."""
        for name, buffer in self.model.named_buffers():
            self.seen[f"buffer {name.rpartition('.')[2]}"] = buffer.dtype
        for parameter in self.model.parameters():
            self.seen |= {"parameters: stored": parameter.dtype, "gradients: stored": parameter.grad.dtype}
        for hook in self.hooks:
            hook.remove()
        rows = [f"\n  {what:52} {dtype}" for what, dtype in sorted(self.seen.items())]
        say(f"types seen in this step:{''.join(rows)}")


class Exact:
    """A second model that takes the same steps with everything in fp32."""

    def __init__(self, config: Any, mesh: DeviceMesh, args: Namespace) -> None:
        plain = {"dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32", "autocast": False}
        self.args = Namespace(**{**vars(args), **plain, "keep_fp32": "none"})
        self.model = build_model(config, mesh, self.args)
        self.optimizer = build_optimizer(self.model, self.args)
        self.scaler = build_scaler(torch.device(mesh.device_type), self.args)

    def drift(self, line: dict[str, float], batches: list[Tensor]) -> dict[str, float]:
        """How far a step's loss and gradient norm are from those in fp32, relative."""
        num_tokens = count_tokens(batches)
        loss = forward_backward(self.model, batches, num_tokens, self.scaler, self.args)
        losses, norm, num, _ = agree(loss, clip_gradients(self.model, self.args.clip), num_tokens, False)
        for group in self.optimizer.param_groups:
            group["lr"] = line["lr"]
        self.optimizer.step()
        self.optimizer.zero_grad()
        return {"loss_drift": line["loss"] * num / sum(losses) - 1, "grad_norm_drift": line["grad_norm"] / norm - 1}


# -- process group, batch --


def start_process_group(args: Namespace) -> torch.device:
    """Also gives this rank's device: a GPU for each rank, or the CPU where there is none."""
    if RANK < 0:
        raise UsageError(f"not started by torchrun; `torchrun --nproc-per-node 2 {Path(__file__).name}` does")
    ranks, gpus = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
    if 0 < gpus < ranks:
        raise UsageError(f"{ranks} ranks on a node with {gpus} GPUs; give torchrun --nproc-per-node {gpus}")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)  # before NCCL starts on the current device
    else:
        say("no CUDA device: training on CPUs with gloo; FSDP2 of torch 2.6 cannot")
    timeout = timedelta(seconds=args.timeout)
    store, _, _ = next(dist.rendezvous("env://", timeout=timeout))
    # torchrun may restart ranks with the store of those that died: these must not find the old addresses.
    store = dist.PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT')}", store)
    backend = "cpu:gloo,cuda:nccl" if gpus else "gloo"  # gloo for what is on the host
    dist.init_process_group(backend, store=store, rank=RANK, world_size=WORLD_SIZE, timeout=timeout)
    return device


def count_rounds(args: Namespace) -> int:
    """The micro-batches that a rank takes for one step."""
    at_once = args.micro_batch * WORLD_SIZE
    rounds, rest = divmod(args.batch_size or at_once, at_once)
    if rest:
        sizes = f"{at_once} (--micro-batch {args.micro_batch} x {WORLD_SIZE} ranks)"
        raise UsageError(f"--batch-size {args.batch_size} does not divide by {sizes}; give a multiple")
    return rounds


def say(text: str) -> None:
    """Print on rank 0."""
    if RANK == 0:
        print(text, flush=True)


@lru_cache(maxsize=1)
def file_group() -> dist.ProcessGroup:
    """Where ranks wait for files: tokenising or writing a checkpoint may take longer than --timeout."""
    return dist.new_group(backend="gloo", timeout=timedelta(hours=24))


def on_rank0(what: str, work: Callable[[], Any]) -> Any:
    """What `work` gives on rank 0, on every rank; likewise its error, so that none waits in vain."""
    result: list[Any] = [None]
    if RANK == 0:
        try:
            result = [work()]
        except (OSError, ValueError, KeyError) as error:  # of files and of what stands in them
            result = [TrainingError(f"{what}: {type(error).__name__}: {' '.join(str(error).split())}")]
    dist.broadcast_object_list(result, src=0, group=file_group())
    if isinstance(result[0], TrainingError):
        raise result[0]
    return result[0]


# -- data --


def write_tokens(args: Namespace) -> str:
    """The file with the text's tokens, int32, or with its bytes; written before the first run."""
    source, model, folder = Path(args.data), Path(args.model or "bytes"), Path(args.checkpoint_dir)
    stat = source.stat()
    path = folder / f"{model.name}-{source.name}-{stat.st_size}-{stat.st_mtime_ns}.int32"
    if path.is_file():
        return str(path)
    if not stat.st_size:
        raise ValueError("no text")
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(model) if any(model.glob("tokenizer*")) else None
    end = (tokenizer and tokenizer.eos_token_id) or 0  # of a document; plain text is a piece of one
    with source.open(encoding="utf-8") as text, path.with_suffix(".partial").open("wb") as file:
        while lines := text.readlines(1 << 20):  # about a mebibyte at a time
            documents = [json.loads(line)["text"] for line in lines] if source.suffix == ".jsonl" else []
            texts = documents or ["".join(lines)]
            for ids in tokenizer(texts, add_special_tokens=False).input_ids if tokenizer else map(str.encode, texts):
                array("i", [*ids, end] if documents else [*ids]).tofile(file)
    return str(path.with_suffix(".partial").replace(path))


@lru_cache(maxsize=2)
def epoch_order(num_sequences: int, seed: int) -> list[int]:
    """An epoch's order of sequences."""
    return torch.randperm(num_sequences, generator=torch.Generator().manual_seed(seed)).tolist()


def micro_batch(tokens: Tensor, position: int, turn: int, args: Namespace, device: torch.device) -> Tensor:
    """This rank's part of one turn of the step that begins at `position`: [B, T + 1], inputs and labels one further.

    The text is cut into sequences without gaps; the last is filled up with labels that do not count. `position`
    counts sequences since the first step, over all ranks and epochs, so it means the same on any number of ranks.
    """
    length, first = args.seq_len, position + (turn * WORLD_SIZE + RANK) * args.micro_batch
    num_sequences, rows = -(-(len(tokens) - 1) // length), []
    for i in range(first, first + args.micro_batch):
        epoch, index = divmod(i, num_sequences)
        start = epoch_order(num_sequences, args.seed * 1_000_003 + epoch)[index] * length
        row = tokens[start : start + length + 1].long()
        rows.append(pad(row, (0, length + 1 - len(row)), value=IGNORE))
    batch = torch.stack(rows)
    return batch.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else batch


# -- model on meta, fully_shard --


def load_config(folder: str) -> Any:
    """The folder's configuration, or a tiny Llama over bytes."""
    if folder:
        return AutoConfig.from_pretrained(Path(folder, "config.json").resolve(strict=True))  # no name on the hub
    sizes = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4}
    return LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)


def new_model(config: Any) -> nn.Module:
    """A random model, in fp32: what AdamW adds to a weight is often too small for bf16."""
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).train()


def find_blocks(model: nn.Module, block_class: str) -> list[nn.Module]:
    """The transformer blocks in the order of the forward: what is gathered at once."""
    names = [block_class] if block_class else list(model._no_split_modules or ())
    blocks = [module for module in model.modules() if type(module).__name__ in names]
    if not blocks:
        known = sorted({type(m[0]).__name__ for m in model.modules() if isinstance(m, nn.ModuleList)})
        raise UsageError(f"no block of class {names} in the model; try --block-class with one of {known}")
    return blocks


def build_model(config: Any, mesh: DeviceMesh, args: Namespace) -> nn.Module:
    """The sharded model with its weights."""
    with torch.device("meta"):
        model = new_model(config)
    shard(model, find_blocks(model, args.block_class), mesh, args)
    materialise(model, torch.device(mesh.device_type))
    load_weights(model, config, args)
    for buffer in model.buffers():
        buffer.data = buffer.to(DTYPES[args.buffer_dtype]) if buffer.is_floating_point() else buffer
    return model


def shard(model: nn.Module, blocks: list[nn.Module], mesh: DeviceMesh, args: Namespace) -> None:
    """Modules that keep fp32, then blocks, then the root; a unit inside another has a policy of its own."""
    compute, fp32 = None if args.autocast else DTYPES[args.dtype], torch.float32
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=DTYPES[args.reduce_dtype])
    # Inputs are cast up, and what comes out is cast down to what the neighbours compute in.
    kept = MixedPrecisionPolicy(param_dtype=fp32, reduce_dtype=fp32, output_dtype=compute)
    head, stays = model.get_output_embeddings(), {"mesh": mesh, "reshard_after_forward": False}
    for module in list(model.modules()) if args.keep_fp32 in ("norms", "both") else ():
        if "Norm" in type(module).__name__:
            fully_shard(module, mp_policy=kept, **stays)  # tiny: stays gathered
    if args.keep_fp32 in ("head", "both"):
        if head.weight is model.get_input_embeddings().weight:
            raise UsageError(f"--keep-fp32 {args.keep_fp32}: the head is tied to the embedding; give norms")
        fully_shard(head, mp_policy=replace(kept, output_dtype=fp32), **stays)
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=replace(policy, output_dtype=DTYPES[args.output_dtype]))


# -- materialise, weights --


@torch.no_grad()
def materialise(model: nn.Module, device: torch.device) -> None:
    """Memory for this rank's shards, poisoned with NaN, so that nothing can stay unfilled unnoticed."""
    model.to_empty(device=device)
    for tensor in chain(model.parameters(), model.buffers()):
        tensor.fill_(math.nan if tensor.is_floating_point() else -1)


@torch.no_grad()
def load_weights(model: nn.Module, config: Any, args: Namespace) -> None:
    """Rank 0 reads or draws the weights on its host and deals out the shards, one tensor after the other."""
    weights: dict[str, Tensor] = {}

    def read() -> list[Tensor]:
        torch.manual_seed(args.seed)
        random = args.from_scratch or not args.model
        whole = new_model(config) if random else AutoModelForCausalLM.from_pretrained(args.model, dtype="float32")
        weights.update(whole.state_dict())
        return list(whole.buffers())

    buffers = on_rank0(f"--model {args.model}", read)  # rotary tables and the like, which no state dict has
    options = dcp_state.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    dcp_state.set_model_state_dict(model, weights, options=options)
    for mine, buffer in zip(model.buffers(), buffers, strict=True):
        mine.copy_(buffer)
    named, ranks = chain(model.named_parameters(), model.named_buffers()), [None] * WORLD_SIZE
    parts = ((name, tensor.to_local() if isinstance(tensor, DTensor) else tensor) for name, tensor in named)
    dist.all_gather_object(ranks, [name for name, part in parts if part.isnan().any()], group=file_group())
    if any(ranks):
        raise TrainingError(f"NaN in the weights, or never filled, by rank: {ranks}")


# -- optimizer, schedule --


def build_optimizer(model: nn.Module, args: Namespace) -> torch.optim.Optimizer:
    """Fused AdamW over what is trained; what is no matrix (norms, biases) has no decay."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [([p for p in trained if p.ndim > 1], args.weight_decay), ([p for p in trained if p.ndim <= 1], 0.0)]
    groups = [{"params": parameters, "weight_decay": decay} for parameters, decay in groups if parameters]
    return torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95), fused=True)


def build_scaler(device: torch.device, args: Namespace) -> torch.amp.GradScaler:
    """Multiplies the loss so that small gradients do not vanish in fp16; elsewhere it does nothing."""
    enabled = args.dtype == "fp16"
    return torch.amp.GradScaler(device.type, init_scale=args.loss_scale, growth_interval=1000, enabled=enabled)


def learning_rate(step: int, args: Namespace) -> float:
    """Linear warm-up, then a cosine from the peak to a tenth of it; steps count from 1."""
    if step <= args.warmup:
        return args.lr * step / args.warmup
    done = (step - args.warmup) / max(args.steps - args.warmup, 1)
    return args.lr * (0.55 + 0.45 * math.cos(math.pi * done))


# -- checkpoints --


class Checkpoints:
    """Folders `step-00000100`; one is whole when it has `.metadata`, which torch writes after the data of all ranks.

    Learning rate, dropout and order of the data follow from seed, step and position: no other state is theirs.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, about: str, args: Namespace) -> None:
        self.model, self.optimizer, self.about, self.args = model, optimizer, about, args
        self.folder, self.pending = Path(args.checkpoint_dir), None

    def whole(self) -> list[Path]:
        """Whole checkpoints, the oldest first."""
        return sorted(path.parent for path in self.folder.glob("step-*/.metadata"))

    def save(self, run: dict[str, Any]) -> None:
        """Copy the state to the host, which takes a moment; a thread writes the copy while training goes on."""
        self.wait()
        weights, moments = dcp_state.get_state_dict(self.model, self.optimizer)
        run = {**run, "about": self.about, "args": str(vars(self.args))}
        state = {"model": weights, "optimizer": moments, "run": run}
        path = self.folder / f"step-{run['step']:08d}"
        self.pending = dcp.async_save(state, checkpoint_id=path, process_group=file_group())
        if not hasattr(dcp.staging, "DefaultStager") and next(self.model.parameters()).device.type == "cpu":
            self.wait()  # torch 2.6 makes no copy of what is on the host already

    def wait(self) -> str:
        """Until the last one is whole, then drop the oldest; says which is the newest."""
        error, whole = self.pending and self.pending.exception(), self.whole()
        newest = f"last checkpoint: {whole[-1] if whole else 'none'}"
        if error:
            reason = str(error).strip().rpartition("\n")[2]
            free = f"{shutil.disk_usage(self.folder).free >> 20} MiB free; make room, then start again"
            raise TrainingError(f"{self.folder}: no checkpoint written: {reason}; {newest}; {free}")
        for old in whole[: -self.args.keep] if RANK == 0 else ():
            (old / ".metadata").unlink()
            shutil.rmtree(old)
        return newest

    def choose(self) -> str:
        """The checkpoint to take up, on rank 0; empty for none. Half-written ones are removed."""
        wanted, whole = self.args.resume, self.whole()
        for half in set(self.folder.glob("step-*")) - set(whole):
            shutil.rmtree(half)
        if whole and wanted != "auto" and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
            raise ValueError(f"{whole[-1]} is there; give another --checkpoint-dir")
        if whole or wanted in ("auto", "none"):
            return str(whole[-1]) if whole else ""
        if not (Path(wanted) / ".metadata").is_file():
            raise ValueError("no whole checkpoint")
        return wanted

    def resume(self, run: dict[str, Any]) -> dict[str, Any]:
        """Load what --resume says, on any number of ranks; gives `run` as it was saved."""
        if path := on_rank0(f"--resume {self.args.resume}", self.choose):
            run = {**run, "about": ""}
            dcp.load({"run": run}, checkpoint_id=path, process_group=file_group())
            if (about := run.pop("about")) != self.about:
                raise UsageError(f"{path} is of {about}, not of {self.about}; give another --checkpoint-dir")
            weights, moments = dcp_state.get_state_dict(self.model, self.optimizer)
            dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=path, process_group=file_group())
            dcp_state.set_state_dict(self.model, self.optimizer, model_state_dict=weights, optim_state_dict=moments)
            say(f"resuming from {path}: {run}")
        return run


def describe(model: nn.Module, tokens: Tensor, args: Namespace) -> str:
    """What must be equal for a checkpoint to be taken up."""
    sizes = f"{model.num_parameters():,} parameters ({model.num_parameters(only_trainable=True):,} trained)"
    return f"a {model.config.model_type} of {sizes}, {len(tokens):,} tokens by {args.seq_len}, seed {args.seed}"


# -- one step --


def note_signals() -> list[int]:
    """The signals of a preemption, as they come: only noted, since a collective may be under way."""
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda number, _frame: signals.append(number))
    return signals


def count_tokens(batches: list[Tensor]) -> Tensor:
    """The labels that count in this step, over all turns and ranks; stays on the device."""
    num_tokens = sum((batch[:, 1:] != IGNORE).sum() for batch in batches)
    dist.all_reduce(num_tokens)
    return num_tokens


def forward_backward(
    model: nn.Module, batches: list[Tensor], num_tokens: Tensor, scaler: torch.amp.GradScaler, args: Namespace
) -> Tensor:
    """Gradients of the mean loss over the step's tokens; this rank's sum of losses.

    FSDP averages gradients over ranks, of which each may hold another number of tokens, as may the turns.
    So the loss is a sum, times the ranks (the average undone), over the tokens of all ranks and turns.
    """
    total = torch.zeros((), device=num_tokens.device)
    for turn, batch in enumerate(batches, 1):
        model.set_requires_gradient_sync(turn == len(batches))  # reduced once, by the last turn
        with torch.autocast(batch.device.type, DTYPES[args.dtype], enabled=args.autocast):
            logits = model(input_ids=batch[:, :-1].clamp(min=0), use_cache=False).logits
        loss = token_loss(logits, batch[:, 1:])
        scaler.scale(loss * (WORLD_SIZE / num_tokens)).backward()
        total += loss.detach()
    return total


def token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of logits [B, T, V], in fp32, summed over the labels that count."""
    return cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORE, reduction="sum")


def clip_gradients(model: nn.Module, limit: float) -> Tensor:
    """Scale the gradients down to a global norm of `limit`; the norm before."""
    norm = nn.utils.clip_grad_norm_(model.parameters(), limit or math.inf)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def agree(loss: Tensor, norm: Tensor, num_tokens: Tensor, stop: bool) -> tuple[list[float], float, int, bool]:
    """Each rank's loss, the norm, the tokens, whether any rank must stop: the step's only wait for the device."""
    report = torch.zeros(WORLD_SIZE + 3, dtype=torch.float64, device=loss.device)
    report[RANK], report[-3] = loss, stop
    dist.all_reduce(report)
    report[-2], report[-1] = norm, num_tokens
    *losses, stops, grad_norm, num = report.tolist()
    return losses, grad_norm, int(num), stops > 0


def nonfinite(step: int, losses: list[float], grad_norm: float, newest: str) -> TrainingError:
    """Where a loss or gradient stopped being finite, and what is left."""
    ranks = [rank for rank, loss in enumerate(losses) if not math.isfinite(loss)]
    what = f"step {step} is not finite: loss of ranks {ranks}, gradient norm {grad_norm}"
    return TrainingError(f"{what}; {newest}; look at its data, lower --lr or give --on-nonfinite skip")


# -- metrics, export --


def flops_per_token(model: nn.Module, seq_len: int) -> float:
    """6 N + 12 L H T (PaLM, arXiv 2204.02311, appendix B); N without an untied embedding's look-up."""
    config = model.config.get_text_config()
    look_up = 0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size
    return 6 * (model.num_parameters() - look_up) + 12 * config.num_hidden_layers * config.hidden_size * seq_len


def log(line: dict[str, float], flops: float, args: Namespace) -> None:
    """A step's line on rank 0, to read and as JSON; of a step that was repeated the last line counts."""
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    line["memory"] = torch.cuda.max_memory_allocated() or host  # bytes at most: tensors on the GPU, or the process
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    if peak := next((peak for part, peak in PEAK_FLOPS.items() if part in name), 0):
        line["mfu"] = line["tokens_per_second"] * flops / peak
    say("  ".join(f"{name} {value:.5g}" for name, value in line.items()))
    if args.metrics and RANK == 0:
        with Path(args.metrics).open("a") as file:  # JSON knows no NaN
            file.write(json.dumps({k: v if math.isfinite(v) else None for k, v in line.items()}) + "\n")


def export(model: nn.Module, config: Any, args: Namespace) -> None:
    """A folder for `AutoModelForCausalLM.from_pretrained`; rank 0 collects the weights on its host."""
    folder, dtype = Path(args.checkpoint_dir) / "export", DTYPES[args.export]
    with torch.device("meta"):  # a plain model, for its class, names and ties
        plain = new_model(config).to(dtype)
    weights = {}
    for name, tensor in dcp_state.get_model_state_dict(model).items():
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor  # by all ranks, one after the other
        weights |= {name: whole.to("cpu", dtype)} if RANK == 0 else {}
    on_rank0(str(folder), lambda: plain.save_pretrained(folder, state_dict=weights))
    say(f"exported to {folder}")


if __name__ == "__main__":
    main()

"""Train a Hugging Face causal language model with FSDP2 and CPU offload; see what it saves and costs.

    torchrun --standalone --nproc-per-node 8 train_cpu_offload.py --model FOLDER --data TEXT --compare-steps 5

With CPUOffloadPolicy a rank keeps its shards of parameters, gradients and AdamW's state on the host, 16 bytes
a parameter over all ranks. A block's shards go to the GPU before its all-gather, its gradients come back once
they are reduced, and AdamW steps on the CPU. `--pin-memory` (page-locked host memory) lets the copies run
beside the compute, but cannot be swapped: leave it out where the host is short. `--offload-activations` moves
what a block keeps for its backward to the host, too; with `--recompute full` that is only the block's input.

`--compare-steps N` trains N steps without offload before, and prints time and memory of both.

The same command goes on after a stop, from the newest whole checkpoint, also on another number of ranks.
All nodes must see --checkpoint-dir. Without a GPU it runs on CPUs with gloo, to try it out.

`train()` is the story; the functions follow in the order of their calls.
Shapes: B sequences of a micro-batch, T tokens of a sequence, V entries of the vocabulary.
"""
# ruff: noqa: ANN401

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import resource
import shutil
import signal
import sys
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict as dcp_state
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.fsdp import (
    CPUOffload,
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.functional import cross_entropy, pad
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaConfig
from transformers.utils.logging import disable_progress_bar

IGNORE = -100  # a label that has no loss
BYTE_END = 256  # ends a document where bytes stand in for tokens
RANK0_WORK = timedelta(hours=24)  # the others wait this long while rank 0 reads, tokenises or writes
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# Dense bf16 FLOP/s by a part of the device's name, first match counts; from NVIDIA's data sheets.
PEAK_FLOPS = {"B200": 2.25e15, "H200": 989e12, "H100 PCIe": 756e12, "H100": 989e12, "A100": 312e12}
Batch = tuple[Tensor, Tensor]  # inputs and labels, both [B, T]


class TrainingError(Exception):
    """The work failed: what, where, and what to do."""

    exit_code = 1


class UsageError(TrainingError):
    """The command asks for what cannot be done."""

    exit_code = 2


def option(default: Any, text: str, *choices: str) -> Any:
    """A field of Settings: its default, its line in --help, the words it may be."""
    return field(default=default, metadata={"help": text, "choices": choices or None})


@dataclass(frozen=True)
class Settings:
    """Every setting once; the command line is made from it."""

    model: str = option("", "Hugging Face folder (default: a tiny random Llama)")
    from_scratch: bool = option(False, "random weights, only the config of --model")
    data: str = option("", "plain text, or JSON lines with `text` (default: a sample)")
    checkpoint_dir: str = option("checkpoints", "for checkpoints, tokens and the export")
    steps: int = option(20, "optimizer steps in all")
    batch_size: int = option(0, "sequences a step over all ranks; 0: micro-batch x ranks")
    micro_batch: int = option(2, "sequences a rank takes at once; more are accumulated")
    seq_len: int = option(128, "tokens of a sequence")
    seed: int = option(0, "of random weights, data order and dropout")
    lr: float = option(3e-4, "peak learning rate")
    warmup: int = option(5, "steps of linear warm-up; then a cosine to a tenth")
    weight_decay: float = option(0.1, "of matrices; norms and biases have none")
    clip: float = option(1.0, "largest global gradient norm; 0: no limit")
    block_class: str = option("", "class to shard by (default: the model's own word)")
    dtype: str = option("bf16", "type of compute; the rest stays fp32", "bf16", "fp32")
    offload: str = option("cpu", "where shards rest and AdamW steps", "cpu", "none")
    pin_memory: bool = option(False, "page-locked host memory")
    offload_activations: bool = option(False, "what backward needs rests on the host")
    recompute: str = option("none", "activation checkpointing", "none", "full")
    compare_steps: int = option(0, "steps to train without offload as well, to compare")
    save_every: int = option(100, "steps from checkpoint to checkpoint; 0: none")
    keep: int = option(2, "checkpoints to keep")
    resume: str = option("auto", "auto, none or the path of a checkpoint")
    export: str = option("fp32", "type of the final export", "fp32", "bf16", "none")
    metrics: str = option("", "file for a JSON line a step")
    on_nonfinite: str = option("stop", "loss or gradient not finite", "stop", "skip")
    timeout: int = option(600, "seconds until a hanging collective ends the job")

    def __post_init__(self) -> None:
        """Check what does not depend on the ranks."""
        for name in ("steps", "micro_batch", "seq_len", "keep", "timeout"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name.replace('_', '-')} is {getattr(self, name)}; give at least 1")
        if self.from_scratch and not self.model:
            raise UsageError("--from-scratch takes the config of --model; give --model")


def parse_settings(arguments: list[str] | None = None) -> Settings:
    """Settings from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for each in fields(Settings):
        kind = {"type": type(each.default), "choices": each.metadata["choices"]}
        kind = {"action": "store_true"} if each.default is False else kind
        text = each.metadata["help"] + (" [%(default)s]" if each.default else "")
        parser.add_argument("--" + each.name.replace("_", "-"), default=each.default, help=text, **kind)
    return Settings(**vars(parser.parse_args(arguments)))


@record
def main() -> None:
    """Train; one line on rank 0 for what a person can mend; no process group is left behind."""
    try:
        train(parse_settings())
    except TrainingError as error:
        if os.environ.get("RANK", "0") == "0":
            print(f"{Path(__file__).name}: {error}", file=sys.stderr, flush=True)
        raise SystemExit(error.exit_code) from None
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def train(settings: Settings) -> None:
    """The whole run."""
    device, control = start_process_group(settings)
    rounds, mesh = accumulation_rounds(settings), init_device_mesh(device.type, (dist.get_world_size(),))
    config = load_config(settings)
    data = PackedText(open_tokens(settings, config, control), settings)
    without = train_without_offload(settings, config, mesh, control, data)

    usage = MemoryReport(device)
    model = build_model(settings, config, mesh, control)
    matrices = {name for name, parameter in model.named_parameters() if parameter.ndim > 1}
    optimizer = build_optimizer(model.named_parameters(), matrices, settings)
    torch.manual_seed(settings.seed + 1 + dist.get_rank())  # dropout differs from rank to rank
    checkpoints = Checkpoints(settings, {"model": describe(model), "data": data.about})
    run = checkpoints.resume(model, optimizer, control)
    step, position = run["step"], run["position"]
    metrics = Metrics(settings, flops_per_token(model, settings.seq_len), device, step)
    usage.note("before the first step")
    stop = StopSignals()

    while step < settings.steps and not stop.agreed:
        batches = [data.micro_batch(position, turn, device) for turn in range(rounds)]
        num_tokens = count_tokens(batches, device)
        loss = forward_backward(model, batches, num_tokens, next_token_loss, settings)
        losses, grad_norm = gather_step(loss, clip_gradients(model, settings.clip), stop)
        step, position = step + 1, position + rounds * settings.micro_batch * dist.get_world_size()
        rate = learning_rate(step, settings)
        finite = all(map(math.isfinite, [*losses, grad_norm]))
        if finite:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()  # where the parameters are: on the CPU, fused
        elif settings.on_nonfinite == "stop":
            raise nonfinite_error(step, losses, grad_norm, checkpoints.latest)
        optimizer.zero_grad()
        usage.step_done()
        line = {"step": step, "loss": sum(losses) / int(num_tokens), "grad_norm": grad_norm, "lr": rate}
        metrics.log(int(num_tokens), **line, **({} if finite else {"skipped": 1}))
        checkpoints.raise_failure()
        if checkpoints.due(step, stop):
            checkpoints.save(model, optimizer, step, position)

    checkpoints.wait()
    usage.note("after the last step")
    usage.print(f"offload {settings.offload}", without)
    if stop.agreed and step < settings.steps:
        say(f"stopped by {stop.received or 'a signal elsewhere'} after step {step}; {checkpoints.latest}")
    elif settings.export != "none":
        export(model, config, settings, control)


def train_without_offload(
    settings: Settings, config: Any, mesh: DeviceMesh, control: dist.ProcessGroup, data: PackedText
) -> float:
    """Seconds of a step with everything on the device, for --compare-steps; 0 where that was not measured."""
    if not settings.compare_steps:
        return 0.0
    device, rounds, stop = torch.device(mesh.device_type), accumulation_rounds(settings), StopSignals()
    usage = MemoryReport(device)
    plain = replace(settings, offload="none", offload_activations=False)
    try:
        model = build_model(plain, config, mesh, control)
        matrices = {name for name, parameter in model.named_parameters() if parameter.ndim > 1}
        optimizer = build_optimizer(model.named_parameters(), matrices, plain)
        usage.note("before the first step")
        for step in range(settings.compare_steps):
            batches = [data.micro_batch(step, turn, device) for turn in range(rounds)]
            loss = forward_backward(model, batches, count_tokens(batches, device), next_token_loss, plain)
            gather_step(loss, clip_gradients(model, plain.clip), stop)
            optimizer.step()
            optimizer.zero_grad()
            usage.step_done()
    except torch.OutOfMemoryError as error:
        raise UsageError("without offload it does not fit the GPU; leave out --compare-steps") from error
    usage.note("after the last step")
    usage.print("offload none", 0.0)
    return usage.seconds()


class MemoryReport:
    """What device and host hold at named moments, and how long steps take; on rank 0."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.rows, self.times = device, [], [time.perf_counter()]
        if device.type == "cuda":
            torch.cuda.empty_cache()  # of a model that was measured before
            torch.cuda.reset_peak_memory_stats(device)

    def note(self, moment: str) -> None:
        """Remember the memory at this moment; all steps are over."""
        self.rows.append((moment, *self.on_device(), host_memory()))
        self.times.append(time.perf_counter())

    def on_device(self) -> tuple[int, int]:
        """Bytes that tensors hold on the GPU, now and at most."""
        if self.device.type != "cuda":
            return 0, 0
        return torch.cuda.memory_allocated(self.device), torch.cuda.max_memory_allocated(self.device)

    def step_done(self) -> None:
        """A step ended; gather_step() has waited for the device."""
        self.times.append(time.perf_counter())

    def seconds(self) -> float:
        """The median time of a step; the first one warms up."""
        steps = [after - before for before, after in zip(self.times[1:], self.times[2:], strict=False)]
        return median(steps[1:-1] or steps)

    def print(self, title: str, without: float) -> None:
        """The table, and the cost against a run without offload."""
        gib = 2**30
        say(f"{title}; GiB of rank 0:      device    peak    host")
        for moment, now, peak, host in self.rows:
            say(f"  {moment:24}{now / gib:10.3f}{peak / gib:8.3f}{host / gib:8.3f}")
        peak_host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        cost = f", {self.seconds() / without - 1:+.0%} against {without:.3f} s without offload" if without else ""
        say(f"  host at most {peak_host / gib:.3f}; a step takes {self.seconds():.3f} s{cost}")


def host_memory() -> int:
    """Bytes that this process has on the host now, as Linux counts them."""
    pages = Path(f"/proc/{os.getpid()}/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()


def build_model(settings: Settings, config: Any, mesh: DeviceMesh, control: dist.ProcessGroup) -> nn.Module:
    """The sharded model with its weights."""
    model = build_on_meta(config)
    blocks = find_blocks(model, settings.block_class)
    for block in blocks:
        wrap_forward(block, settings)
    shard(model, blocks, mesh, settings)
    materialise(model, torch.device(mesh.device_type), settings)
    if settings.model and not settings.from_scratch:
        load_pretrained(model, settings.model, control)
    else:
        init_random(model, settings.seed)
    check_complete(model)
    return model


# -- process group, batch, mesh --


def start_process_group(settings: Settings) -> tuple[torch.device, dist.ProcessGroup]:
    """This rank's device, and a gloo group for waiting as long as rank 0 works on something alone."""
    if os.environ.get("RANK") is None:
        raise UsageError(f"not started by torchrun; `torchrun --nproc-per-node 2 {Path(__file__).name}` does")
    device = choose_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        say("no CUDA device: training on CPUs with gloo")
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"  # gloo for what is on the host
    timeout = timedelta(seconds=settings.timeout)
    store, rank, world_size = next(dist.rendezvous("env://", timeout=timeout))
    # torchrun may restart ranks with the store of those that died: these must not find the old addresses.
    store = dist.PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT')}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)
    disable_progress_bar()
    return device, dist.new_group(backend="gloo", timeout=RANK0_WORK)


def choose_device() -> torch.device:
    """A GPU for each rank, or the CPU where there is none."""
    if not torch.cuda.is_available():
        if not hasattr(torch.cpu.Stream, "record_event"):
            raise UsageError(f"FSDP2 of torch {torch.__version__} needs a GPU; on CPUs take a newer torch")
        return torch.device("cpu")
    ranks, gpus = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
    if ranks > gpus:
        raise UsageError(f"{ranks} ranks on a node with {gpus} GPUs; give torchrun --nproc-per-node {gpus}")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def accumulation_rounds(settings: Settings) -> int:
    """The micro-batches that a rank takes for one step."""
    at_once = settings.micro_batch * dist.get_world_size()
    rounds, rest = divmod(settings.batch_size or at_once, at_once)
    if rest:
        raise UsageError(
            f"--batch-size {settings.batch_size} does not divide by --micro-batch {settings.micro_batch} x "
            f"{dist.get_world_size()} ranks; give a multiple of {at_once}"
        )
    return rounds


def say(text: str) -> None:
    """Print on rank 0."""
    if os.environ.get("RANK") == "0":
        print(text, flush=True)


def on_rank0(work: Callable[[], Any], control: dist.ProcessGroup) -> Any:
    """What `work` gave on rank 0, on every rank; likewise its error."""
    outcome: list[Any] = [None]
    if dist.get_rank() == 0:
        try:
            outcome = [work()]
        except TrainingError as error:
            outcome = [error]
        except (OSError, ValueError) as error:  # of files, also of models that transformers cannot load
            outcome = [TrainingError(" ".join(str(error).split()))]
    dist.broadcast_object_list(outcome, src=0, group=control)
    if isinstance(outcome[0], TrainingError):
        raise outcome[0]
    return outcome[0]


# -- model on meta, activation checkpointing, compile, fully_shard --


def load_config(settings: Settings) -> Any:
    """The folder's configuration, or a tiny Llama over bytes."""
    if not settings.model:
        sizes = {"vocab_size": 320, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4}
        return LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
    if not (Path(settings.model) / "config.json").is_file():
        raise UsageError(f"--model {settings.model} has no config.json; give a Hugging Face model's folder")
    return AutoConfig.from_pretrained(settings.model)


def build_on_meta(config: Any) -> nn.Module:
    """An fp32 model whose parameters are on meta from the moment that a module registers them.

    So they cost neither memory nor time. Buffers are real, since nothing but the constructor can fill them.
    """
    register = nn.Module.register_parameter

    def register_on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:
            parameter = nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)
        register(module, name, parameter)

    nn.Module.register_parameter = register_on_meta
    try:
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32).train()
    finally:
        nn.Module.register_parameter = register


def describe(model: nn.Module) -> str:
    """By what a checkpoint knows its model: names, shapes and what is trained."""
    tensors = [(name, tuple(p.shape), p.requires_grad) for name, p in model.named_parameters()]
    digest = hashlib.sha256(repr(tensors).encode()).hexdigest()[:8]
    return f"{model.config.model_type} of {sum(p.numel() for p in model.parameters()):,} parameters ({digest})"


def find_blocks(model: nn.Module, block_class: str) -> list[nn.Module]:
    """The transformer blocks in the order of the forward: what is gathered at once."""
    names = [block_class] if block_class else list(model._no_split_modules or ())
    blocks = [module for module in model.modules() if type(module).__name__ in names]
    if not blocks:
        repeated = {type(m[0]).__name__ for m in model.modules() if isinstance(m, nn.ModuleList) and len(m)}
        raise UsageError(f"no block of class {names} in the model; try --block-class with one of {repeated}")
    return blocks


def wrap_forward(block: nn.Module, settings: Settings) -> None:
    """Activation checkpointing, around it the offload of what is still kept for the backward."""
    inner = block.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        if settings.recompute == "full":
            return checkpoint(inner, *args, use_reentrant=False, **kwargs)
        return inner(*args, **kwargs)

    def offloaded(*args: Any, **kwargs: Any) -> Any:
        with torch.autograd.graph.save_on_cpu(pin_memory=settings.pin_memory and torch.cuda.is_available()):
            return forward(*args, **kwargs)

    block.forward = offloaded if settings.offload_activations else forward


def shard(model: nn.Module, blocks: list[nn.Module], mesh: DeviceMesh, settings: Settings) -> None:
    """Blocks first, then the root, which owns what is left: embeddings and the last norm."""
    compute = None if settings.dtype == "fp32" else DTYPES[settings.dtype]
    # Gradients are reduced in fp32: a sum over many ranks loses too much in bf16.
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
    pin = settings.pin_memory and mesh.device_type == "cuda"
    rest = CPUOffloadPolicy(pin_memory=pin) if settings.offload == "cpu" else OffloadPolicy()
    for unit in [*blocks, model]:
        fully_shard(unit, mesh=mesh, mp_policy=policy, offload_policy=rest)


def shard_fsdp1(model: nn.Module, blocks: list[nn.Module], device: torch.device) -> nn.Module:
    """The same in FSDP1, for code that is still on it: `model` has its weights already.

    Its CPUOffload always pins, and does not allow accumulating under no_sync(): gradients leave the GPU.
    """
    if device.type == "cpu":
        raise UsageError("FSDP1's CPUOffload needs an accelerator; there is none")
    policy = ModuleWrapPolicy({type(block) for block in blocks})
    offload = CPUOffload(offload_params=True)
    return FullyShardedDataParallel(
        model, auto_wrap_policy=policy, cpu_offload=offload, device_id=device, use_orig_params=True
    )


# -- materialise, weights --


def materialise(model: nn.Module, device: torch.device, settings: Settings) -> None:
    """Memory for this rank's shards, poisoned with NaN, so that nothing can stay unfilled unnoticed.

    Offloaded shards live on the host; buffers belong to no shard and are needed where the compute is.
    """
    tables = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.to_empty(device="cpu" if settings.offload == "cpu" else device)
    with torch.no_grad():
        for tensor in chain(model.parameters(), model.buffers()):
            if tensor.is_floating_point():
                tensor.fill_(math.nan)
        for name, buffer in model.named_buffers():
            buffer.data = tables[name].to(device)


def load_pretrained(model: nn.Module, folder: str, control: dist.ProcessGroup) -> None:
    """Rank 0 reads the weights with transformers and deals out the shards, one tensor after the other."""
    weights: dict[str, Tensor] = {}

    def read() -> None:
        weights.update(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict())

    on_rank0(read, control)
    options = dcp_state.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    dcp_state.set_model_state_dict(model, weights, options=options)


@torch.no_grad()
def init_random(model: nn.Module, seed: int) -> None:
    """The model's own initialisation on one module's whole parameters at a time; a rank keeps its shards.

    So the weights depend on the seed alone, not on the ranks, and initialisers see plain tensors.
    """
    torch.manual_seed(seed)
    for module in model.modules():
        shards = dict(module.named_parameters(recurse=False))
        for name, kept in shards.items():
            whole = torch.full(kept.shape, math.nan, device=kept.to_local().device)
            setattr(module, name, nn.Parameter(whole, requires_grad=kept.requires_grad))
        model._init_weights(module)
        for name, kept in shards.items():
            dealt = distribute_tensor(getattr(module, name).data, kept.device_mesh, kept.placements)
            kept.to_local().copy_(dealt.to_local())
            setattr(module, name, kept)


def check_complete(model: nn.Module) -> None:
    """No tensor has kept the poison of `materialise`."""
    named = chain(model.named_parameters(), model.named_buffers())
    holes = [name for name, tensor in named if tensor.is_floating_point() and local(tensor).isnan().any()]
    if holes:
        raise TrainingError(f"{len(holes)} tensors are NaN or were never filled, first {holes[0]}")


def local(tensor: Tensor) -> Tensor:
    """This rank's part."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


# -- optimizer, schedule --


def build_optimizer(
    named: Iterable[tuple[str, nn.Parameter]], matrices: set[str], settings: Settings
) -> torch.optim.Optimizer:
    """Fused AdamW over what is trained; what is no matrix (norms, biases) has no decay."""
    trained = [(name in matrices, parameter) for name, parameter in named if parameter.requires_grad]
    groups = [
        {"params": [p for matrix, p in trained if matrix], "weight_decay": settings.weight_decay},
        {"params": [p for matrix, p in trained if not matrix], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=settings.lr, betas=(0.9, 0.95), fused=True)


def learning_rate(step: int, settings: Settings) -> float:
    """Linear warm-up, then a cosine from the peak to a tenth of it; steps count from 1."""
    if step <= settings.warmup:
        return settings.lr * step / settings.warmup
    done = (step - settings.warmup) / max(settings.steps - settings.warmup, 1)
    return settings.lr * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * done)))


# -- data --


def open_tokens(settings: Settings, config: Any, control: dist.ProcessGroup) -> Tensor:
    """All tokens of the text, int32, mapped from a file that rank 0 writes once."""
    path = on_rank0(lambda: write_tokens(settings, config), control)
    return torch.from_file(path, shared=False, size=Path(path).stat().st_size // 4, dtype=torch.int32)


def write_tokens(settings: Settings, config: Any) -> str:
    """Tokenise the text into a file, unless that was done before; the file's path."""
    encode, end = load_tokenizer(Path(settings.model or "no model"))
    source, origin = Path(settings.data), [settings.model, end, settings.data]
    if settings.data:
        if not source.is_file():
            raise UsageError(f"--data {source} is not a file; give plain text or JSON lines")
        origin += [source.stat().st_size, source.stat().st_mtime_ns]
    digest = hashlib.sha256(repr(origin).encode()).hexdigest()[:16]
    path = Path(settings.checkpoint_dir) / f"tokens-{digest}.int32"
    if path.is_file():
        return str(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        for texts, ended in read_texts(source if settings.data else None):
            for ids in encode(texts):
                if max(ids, default=0) >= config.vocab_size:
                    raise UsageError(f"id {max(ids)} is beyond the model's vocabulary of {config.vocab_size}")
                array("i", [*ids, end] if ended and end is not None else ids).tofile(file)
    if partial.stat().st_size < 2 * 4:
        raise UsageError(f"--data {source} has no text")
    return str(partial.replace(path))


def load_tokenizer(folder: Path) -> tuple[Callable[[list[str]], list[list[int]]], int | None]:
    """How to encode texts and what ends one: the model's tokenizer, or bytes where it has none."""
    if not list(folder.glob("tokenizer*")):
        return lambda texts: [list(text.encode()) for text in texts], BYTE_END
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return lambda texts: tokenizer(texts, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id


def read_texts(path: Path | None) -> Iterator[tuple[list[str], bool]]:
    """About a mebibyte at a time, and whether each text ends a document; a plain file is one."""
    if path is None:  # the sample
        yield ["".join(f"{a} times {b} is {a * b}.\n" for a in range(2, 25) for b in range(2, 25))], True
        return
    json_lines, number = path.suffix in (".jsonl", ".json", ".ndjson"), 0
    with path.open(encoding="utf-8") as file:
        while lines := file.readlines(1 << 20):
            numbered = enumerate(lines, number + 1)
            texts = [parse_line(path, n, line) for n, line in numbered] if json_lines else ["".join(lines)]
            yield texts, json_lines
            number += len(lines)
    if not json_lines:
        yield [""], True


def parse_line(path: Path, number: int, line: str) -> str:
    """The text of a JSON line."""
    try:
        return str(json.loads(line)["text"])
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f'{path}:{number} is not a line such as {{"text": "..."}}') from error


class PackedText:
    """The text in sequences of T tokens without gaps; the last is filled up with labels that do not count.

    Each epoch has its own order, from the seed. `position` counts the sequences since the first step, over
    all ranks: it means the same on any number of them, and says which data have been seen.
    """

    def __init__(self, tokens: Tensor, settings: Settings) -> None:
        self.tokens, self.settings = tokens, settings
        self.num_sequences = -(-(len(tokens) - 1) // settings.seq_len)
        ends = int(tokens[:100_000].sum()), int(tokens[-100_000:].sum())
        self.about = f"{len(tokens)} tokens {ends} by {settings.seq_len}, seed {settings.seed}"
        self.epoch, self.order = -1, torch.empty(0)

    def sequence(self, position: int) -> Tensor:
        """T + 1 tokens: inputs, and labels one further."""
        epoch, index = divmod(position, self.num_sequences)
        if epoch != self.epoch:
            generator = torch.Generator().manual_seed(self.settings.seed * 1_000_003 + epoch)
            self.epoch, self.order = epoch, torch.randperm(self.num_sequences, generator=generator)
        length = self.settings.seq_len
        start = int(self.order[index]) * length
        tokens = self.tokens[start : start + length + 1].long()
        return pad(tokens, (0, length + 1 - len(tokens)), value=IGNORE)

    def micro_batch(self, position: int, turn: int, device: torch.device) -> Batch:
        """This rank's part of one turn of the step that begins at `position`."""
        size = self.settings.micro_batch
        first = position + (turn * dist.get_world_size() + dist.get_rank()) * size
        tokens = torch.stack([self.sequence(first + i) for i in range(size)])
        if device.type == "cuda":
            tokens = tokens.pin_memory().to(device, non_blocking=True)
        return tokens[:, :-1].clamp(min=0), tokens[:, 1:]


# -- one step --


class StopSignals:
    """SIGTERM and SIGUSR1 announce a preemption; gather_step() tells all ranks, which then stop together."""

    def __init__(self) -> None:
        self.received, self.agreed = "", False
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self.note)

    def note(self, number: int, _frame: object) -> None:
        """Only a note: a collective may be under way."""
        self.received = signal.Signals(number).name


def next_token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of logits [B, T, V], in fp32, summed over the labels that count."""
    return cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORE, reduction="sum")


def count_tokens(batches: list[Batch], device: torch.device) -> Tensor:
    """The labels that count in this step, over all turns and ranks; stays on the device."""
    num_tokens = torch.zeros((), dtype=torch.int64, device=device)
    for _, labels in batches:
        num_tokens += (labels != IGNORE).sum()
    dist.all_reduce(num_tokens)
    return num_tokens


def forward_backward(
    model: nn.Module, batches: list[Batch], num_tokens: Tensor, token_loss: Any, settings: Settings
) -> Tensor:
    """Gradients of the mean loss over the step's tokens; this rank's sum of losses.

    FSDP averages gradients over ranks, of which each may hold another number of tokens, as may the turns.
    So the loss is a sum, times the ranks (the average undone), over the tokens of all ranks and turns.
    """
    total = torch.zeros((), device=num_tokens.device)
    for turn, (inputs, labels) in enumerate(batches):
        last = turn == len(batches) - 1
        model.set_is_last_backward(last)
        model.set_requires_gradient_sync(last)  # reduced once, by the last turn; until then gradients are whole
        loss = token_loss(model(input_ids=inputs, use_cache=False).logits, labels)
        (loss * (dist.get_world_size() / num_tokens)).backward()
        total += loss.detach()
    return total


def clip_gradients(model: nn.Module, limit: float) -> Tensor:
    """Scale the gradients down to a global norm of `limit`; the norm before."""
    norm = nn.utils.clip_grad_norm_(model.parameters(), limit or math.inf)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def gather_step(loss: Tensor, grad_norm: Tensor, stop: StopSignals) -> tuple[list[float], float]:
    """Each rank's loss and the gradient norm as numbers: the step's only wait for the device."""
    mine = torch.stack([loss, torch.full_like(loss, bool(stop.received))])
    ranks = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(ranks, mine)
    *values, norm = torch.cat([*ranks, grad_norm.to(loss.device).reshape(1)]).tolist()
    stop.agreed = any(values[1::2])
    return values[0::2], norm


def nonfinite_error(step: int, losses: list[float], grad_norm: float, latest: str) -> TrainingError:
    """Where a loss or gradient stopped being finite."""
    ranks = [str(rank) for rank, loss in enumerate(losses) if not math.isfinite(loss)]
    what = f"the loss of rank {', '.join(ranks)}" if ranks else f"the gradient norm ({grad_norm}), no rank's loss,"
    remedy = "look at this step's data, lower --lr or pass --on-nonfinite skip"
    return TrainingError(f"step {step}: {what} is not finite; {latest}; {remedy}")


# -- checkpoints --


class Checkpoints:
    """Folders `step-00000100`: whole, or still called `.partial`.

    All ranks write in the background; when the last is done, rank 0 renames. `about` is what must be equal
    for a checkpoint to be taken up.
    """

    def __init__(self, settings: Settings, about: dict[str, str]) -> None:
        self.folder, self.settings, self.about = Path(settings.checkpoint_dir), settings, about
        self.group = dist.new_group(backend="gloo", timeout=RANK0_WORK)  # its thread runs beside the training's
        self.thread = ThreadPoolExecutor(max_workers=1)
        self.pending: Future[None] | None = None
        self.latest = "no checkpoint yet"

    def due(self, step: int, stop: StopSignals) -> bool:
        """Every so many steps, and before leaving."""
        every, last = self.settings.save_every, step == self.settings.steps
        return every > 0 and (step % every == 0 or last or stop.agreed)

    def whole(self) -> list[Path]:
        """Whole checkpoints, the oldest first."""
        return sorted(path for path in self.folder.glob("step-*") if path.suffix != ".partial")

    def save(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, position: int) -> None:
        """Copy the state to the host, which takes a moment, and have the copy written."""
        self.wait()
        weights, moments = dcp_state.get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments, "run": self.run_state(step, position)}
        state["random"] = {str(dist.get_rank()): random_states()}
        # The copy is our own, since torch's async_save has copied nothing that is on the host already.
        state = tree_map(lambda x: x.detach().to("cpu", copy=True) if isinstance(x, Tensor) else x, state)
        self.pending = self.thread.submit(self.write, state, step)

    def run_state(self, step: int, position: int) -> dict[str, Any]:
        """Where the run stands and what its schedule is."""
        schedule = {name: getattr(self.settings, name) for name in ("steps", "lr", "warmup", "batch_size")}
        return {"step": step, "position": position, "schedule": str(schedule), **self.about}

    def write(self, state: dict[str, Any], step: int) -> None:
        """In the thread: write, rename, drop the oldest."""
        whole = self.folder / f"step-{step:08d}"
        partial = whole.with_suffix(".partial")
        if dist.get_rank() == 0:
            shutil.rmtree(partial, ignore_errors=True)  # from a run that died while writing it
        dist.barrier(group=self.group)
        dcp.save(state, checkpoint_id=partial, process_group=self.group)
        if dist.get_rank() == 0:
            shutil.rmtree(whole, ignore_errors=True)
            partial.rename(whole)
            for old in self.whole()[: -self.settings.keep]:
                shutil.rmtree(old)
        self.latest = f"last checkpoint {whole}"

    def wait(self) -> None:
        """Until what is being written is whole; raises its failure."""
        pending, self.pending = self.pending, None
        try:
            if pending:
                pending.result()
        except (OSError, RuntimeError, dcp.CheckpointException) as error:
            first, *_ = [cause for cause, _ in getattr(error, "failures", {}).values()] or [error]
            reason = f"{str(first).splitlines()[0]}, {shutil.disk_usage(self.folder).free >> 20} MiB free"
            remedy = "make room, then start the same command again"
            raise TrainingError(f"{self.folder}: no checkpoint written ({reason}); {self.latest}; {remedy}") from error

    def raise_failure(self) -> None:
        """Learn of a failure soon, not when the next checkpoint is due."""
        if self.pending and self.pending.done():
            self.wait()

    def choose(self) -> str:
        """The checkpoint to take up, on rank 0; empty for none."""
        wanted, whole = self.settings.resume, self.whole()
        restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
        if wanted == "auto" or (restarted and whole):
            return str(whole[-1]) if whole else ""
        if wanted == "none" and whole:
            raise UsageError(f"--resume none, but {whole[-1]} is there; give another --checkpoint-dir")
        if wanted != "none" and not (Path(wanted) / ".metadata").is_file():
            raise UsageError(f"--resume {wanted} is no whole checkpoint; there are {[str(p) for p in whole]}")
        return wanted.removeprefix("none")

    def resume(self, model: nn.Module, optimizer: torch.optim.Optimizer, control: dist.ProcessGroup) -> dict[str, Any]:
        """Load what --resume says, on any number of ranks; where the run stands."""
        path, run, rank = on_rank0(self.choose, control), self.run_state(0, 0), str(dist.get_rank())
        if not path:
            return run
        dcp.load({"run": run}, checkpoint_id=path, process_group=self.group)
        for name, mine in self.about.items():
            if run[name] != mine:
                raise UsageError(f"{path} is of another {name}: {run[name]}, not {mine}; see --checkpoint-dir")
        say(f"resuming from {path}: step {run['step']}, {run['position']} sequences seen, {run['schedule']}")
        weights, moments = dcp_state.get_state_dict(model, optimizer)
        state: dict[str, Any] = {"model": weights, "optimizer": moments}
        saved = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
        if any(name.startswith(f"random.{rank}.") for name in saved):  # not on more ranks than before
            state["random"] = {rank: random_states()}
        dcp.load(state, checkpoint_id=path, process_group=self.group)
        dcp_state.set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
        for group in optimizer.param_groups:  # as the command line says now
            group["weight_decay"] = self.settings.weight_decay if group["weight_decay"] else 0.0
        for device, generator in state.get("random", {}).get(rank, {}).items():
            torch.set_rng_state(generator) if device == "cpu" else torch.cuda.set_rng_state(generator)
        self.latest = f"last checkpoint {path}"
        return run


def random_states() -> dict[str, Tensor]:
    """The states of this rank's generators."""
    cuda = {"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else {}
    return {"cpu": torch.get_rng_state(), **cuda}


# -- metrics, export --


class Metrics:
    """A line a step from rank 0, for people and as JSON."""

    def __init__(self, settings: Settings, flops: float, device: torch.device, step: int) -> None:
        self.settings, self.device, self.time = settings, device, time.perf_counter()
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
        peak = next((flops for part, flops in PEAK_FLOPS.items() if part in name), None)
        self.mfu_per_token = flops / peak if peak else None
        self.path = Path(settings.metrics) if settings.metrics and dist.get_rank() == 0 else None
        if self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lines = self.path.read_text().splitlines(True) if step and self.path.is_file() else []
            self.path.write_text("".join(line for line in lines if json.loads(line)["step"] <= step))

    def log(self, num_tokens: int, **line: float) -> None:
        """What a step was like; its time is counted from the one before."""
        before, self.time = self.time, time.perf_counter()
        line["tokens_per_second"] = num_tokens / dist.get_world_size() / (self.time - before)
        line["memory"] = peak_memory(self.device)
        if self.mfu_per_token:
            line["mfu"] = self.mfu_per_token * line["tokens_per_second"]
        if self.path:
            with self.path.open("a") as file:  # JSON knows no NaN
                file.write(json.dumps({k: v if math.isfinite(v) else None for k, v in line.items()}) + "\n")
        shown = line | {"memory": line["memory"] / 2**30}
        say("  ".join(f"{name} {value:.5g}" for name, value in shown.items()) + f" (of {self.settings.steps}; GiB)")


def flops_per_token(model: nn.Module, seq_len: int) -> float:
    """6 N + 12 L H T (PaLM, arXiv 2204.02311, appendix B); N without an untied embedding's look-up."""
    config = model.config.get_text_config()
    size = sum(parameter.numel() for parameter in model.parameters())
    if not config.tie_word_embeddings:
        size -= config.vocab_size * config.hidden_size
    return 6 * size + 12 * config.num_hidden_layers * config.hidden_size * seq_len


def peak_memory(device: torch.device) -> int:
    """Bytes at most so far: tensors on the GPU, or the process on the host."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def export(model: nn.Module, config: Any, settings: Settings, control: dist.ProcessGroup) -> None:
    """A folder for `AutoModelForCausalLM.from_pretrained`; rank 0 gathers the weights on its host."""
    weights = {}
    for name, tensor in dcp_state.get_model_state_dict(model).items():
        gathered = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        weights |= {name: gathered.cpu()} if dist.get_rank() == 0 else {}
    whole = Path(settings.checkpoint_dir) / "export"

    def write() -> None:
        partial, dtype = whole.with_suffix(".partial"), DTYPES[settings.export]
        shutil.rmtree(partial, ignore_errors=True)
        with torch.device("meta"):  # a plain model, for its class, names and ties
            plain = AutoModelForCausalLM.from_config(config, dtype=dtype)
        plain.save_pretrained(partial, state_dict={name: w.to(dtype) for name, w in weights.items()})
        for pattern in ("*token*", "chat_template*", "generation_config.json") if settings.model else ():
            for path in Path(settings.model).glob(pattern):
                shutil.copy(path, partial)
        shutil.rmtree(whole, ignore_errors=True)
        partial.rename(whole)

    on_rank0(write, control)
    say(f"exported to {whole}")


if __name__ == "__main__":
    main()

"""Runs a training script on several ranks, quickly, and with faults where a test asks for them.

As a server (no arguments) it imports torch and transformers once and forks the ranks of each run: one JSON
request a line on stdin, one answer a line on stdout. Under torchrun, with SCRIPT FAULTS ARGUMENTS..., it is one
rank.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import resource
import signal
import socket
import sys
import tempfile
import threading
import traceback
from pathlib import Path

import tokenizers
import torch
import torch.distributed as dist
import transformers
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

SCRIPTS = Path(__file__).parents[2] / "scripts"


def load_script(path):
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def num_bytes(tensors):
    """Bytes of the memory behind tensors, of which several may share one piece."""
    storages = [local(tensor).untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


class Collectives(TorchDispatchMode):
    """Counts what goes to the process groups."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        if function.namespace == "c10d":
            self.names.append(function.__name__)
        return function(*arguments, **(named or {}))


# ---- faults and probes: each takes the script's module, this rank and its own settings ----


def signal_at_step(module, rank, *, number, step, on_rank):
    """A signal to one rank between the backward and the optimizer's step."""
    inner = module.learning_rate

    def learning_rate(now, settings):
        if now == step and rank == on_rank and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
            os.kill(os.getpid(), signal.Signals[number])
        return inner(now, settings)

    module.learning_rate = learning_rate


def kill_in_save(module, rank, *, save, on_rank):
    """SIGKILL one rank when it has written its part of a checkpoint and the others still wait for it."""
    inner, saves = FileSystemWriter.write_data, []

    def write_data(self, plan, planner):
        saves.append(1)
        future = inner(self, plan, planner)
        future.wait()
        if len(saves) == save and rank == on_rank and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        return future

    FileSystemWriter.write_data = write_data


def write_late(module, rank, *, until_step):
    """The first checkpoint is not written before training has come to a later step; fails if it never does."""
    inner, late = FileSystemWriter.write_data, threading.Event()
    learning_rate = module.learning_rate

    def write_data(self, plan, planner):
        assert late.wait(timeout=250), "training waited for the checkpoint"
        return inner(self, plan, planner)

    def noted(now, settings):
        if now == until_step:
            late.set()
        return learning_rate(now, settings)

    FileSystemWriter.write_data, module.learning_rate = write_data, noted


def nan_loss(module, rank, *, step, on_rank):
    """One rank's loss is not a number in one step."""
    inner, calls = module.forward_backward, []

    def forward_backward(*arguments):
        calls.append(1)
        loss, num_tokens = inner(*arguments)
        return loss * float("nan") if len(calls) == step and rank == on_rank else loss, num_tokens

    module.forward_backward = forward_backward


def small_files(module, rank, *, limit):
    """No file may grow beyond `limit` bytes: writing fails in the middle, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


def pretend_gpus(module, rank, *, count):
    """torch sees GPUs; none is used, because the check comes first."""
    torch.cuda.device_count = lambda: count


def forgotten_weights(module, rank):
    """The norms keep what was in memory before."""
    inner = module.dcp_state.set_model_state_dict

    def forgetful(model, weights, **settings):
        before = {name: local(p).detach().clone() for name, p in model.named_parameters()}
        inner(model, weights, **settings)
        with torch.no_grad():
            for name, p in model.named_parameters():
                if "norm" in name:
                    local(p).copy_(before[name])

    module.dcp_state.set_model_state_dict = forgetful


def probe(module, rank, *, path):
    """Count bytes and collectives of each step, and keep what the model gives at the end."""
    found = {"reduced": [], "gathered": []}
    forward_backward, clip_gradients, build_optimizer = (
        module.forward_backward,
        module.clip_gradients,
        module.build_optimizer,
    )

    def counted(*arguments):
        with Collectives() as collectives:
            result = forward_backward(*arguments)
        for kind, part in (("reduced", "reduce_scatter"), ("gathered", "allgather")):
            found[kind].append(sum(part in name for name in collectives.names))
        found["names"] = sorted(set(collectives.names))
        return result

    def clipped(model, limit):
        found["parameter_bytes"] = num_bytes(model.parameters())
        found["gradient_bytes"] = num_bytes(p.grad for p in model.parameters() if p.grad is not None)
        found["total_elements"] = sum(p.numel() for p in model.parameters())
        return clip_gradients(model, limit)

    def built(*arguments):
        found["optimizer"] = build_optimizer(*arguments)
        return found["optimizer"]

    export = module.export

    def exported(model, *arguments):
        model.eval()
        with torch.no_grad():
            logits = model(input_ids=torch.arange(40)[None] + 60, use_cache=False).logits
        rotary = [buffer for name, buffer in model.named_buffers() if name.endswith("inv_freq")]
        if rank == 0:
            torch.save({"logits": logits.float(), "rotary": [local(b) for b in rotary]}, f"{path}.logits")
        optimizer = found.pop("optimizer")
        states = [t for state in optimizer.state.values() for t in state.values() if t.ndim]
        found["optimizer_bytes"] = num_bytes(states)
        Path(f"{path}.{rank}").write_text(json.dumps(found))
        export(model, *arguments)

    module.forward_backward, module.clip_gradients = counted, clipped
    module.build_optimizer, module.export = built, exported


FAULTS = {
    f.__name__: f
    for f in (signal_at_step, kill_in_save, write_late, nan_loss, small_files, pretend_gpus, forgotten_weights, probe)
}


def run_script(script, faults, arguments):
    """One rank: the script's main(), with the faults in place."""
    module = load_script(script)
    for name, settings in faults.items():
        FAULTS[name](module, int(os.environ.get("RANK", "0")), **settings)
    sys.argv = [script, *arguments]
    module.main()


# ---- tasks that need torch and no ranks ----


def make_model(folder, *, tied=False, layers=2, vocab=320, seed=1, config_only=False, kind="llama"):
    """A small Hugging Face folder with random weights in it."""
    torch.manual_seed(seed)
    sizes = {
        "vocab_size": vocab,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "tie_word_embeddings": tied,
    }
    if kind == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=vocab, n_layer=layers, n_head=4, n_embd=32, n_positions=64,
            resid_pdrop=0.1, embd_pdrop=0.1, attn_pdrop=0.1, bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
    else:
        config = transformers.LlamaConfig(
            **sizes, hidden_size=36, intermediate_size=60, num_key_value_heads=2, head_dim=8
        )
    if config_only:
        config.save_pretrained(folder)
    else:
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder, max_shard_size="20KB")


def train_plainly(model, data, *, steps, batch_size, seq_len, lr, warmup, weight_decay=0.1, clip=1.0, seed=0):
    """The same training by one process: a plain loop, written without a look at the templates' code."""
    network = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).train()
    text = torch.tensor(list(Path(data).read_bytes()))
    starts = range(0, len(text) - 1, seq_len)
    decayed = [p for p in network.parameters() if p.ndim >= 2]
    others = [p for p in network.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), foreach=False, fused=False)
    order = []
    for epoch in range(steps * batch_size // len(starts) + 1):
        order += torch.randperm(len(starts), generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch)).tolist()
    result = []
    for step in range(1, steps + 1):
        loss_sum, count = 0.0, 0
        for index in order[(step - 1) * batch_size : step * batch_size]:
            piece = text[starts[index] : starts[index] + seq_len + 1]
            logits = network(input_ids=piece[None, :-1]).logits[0]
            loss_sum = loss_sum - logits.log_softmax(-1).gather(1, piece[1:, None]).sum()
            count += len(piece) - 1
        loss = loss_sum / count
        loss.backward()
        norm = sum(p.grad.pow(2).sum() for p in network.parameters()).sqrt()
        for p in network.parameters():
            p.grad *= min(1.0, clip / (norm.item() + 1e-6))
        rest = (step - warmup) / (steps - warmup)
        cosine = 0.1 + 0.9 * (1 + torch.cos(torch.tensor(torch.pi * rest)).item()) / 2
        for group in optimizer.param_groups:
            group["lr"] = lr * (step / warmup if step <= warmup else cosine)
        optimizer.step()
        optimizer.zero_grad()
        result.append({"step": step, "loss": loss.item(), "grad_norm": norm.item(), "lr": group["lr"]})
    return result


@torch.no_grad()
def logits_of(folder):
    """What transformers makes of an exported folder for the probe's input."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    rotary = [buffer for name, buffer in model.named_buffers() if name.endswith("inv_freq")]
    return model(input_ids=torch.arange(40)[None] + 60).logits, rotary


def reload_error(folder, probed):
    """The largest differences of logits and rotary tables between an export and the sharded model."""
    logits, rotary = logits_of(folder)
    kept = torch.load(f"{probed}.logits")
    tables = [(a - b).abs().max().item() for a, b in zip(rotary, kept["rotary"], strict=True)]
    return {
        "logits": (logits - kept["logits"]).abs().max().item(),
        "rotary": max(tables),
        "tables": len(tables),
    }


@torch.no_grad()
def loss_on(folder, text):
    """Mean cross entropy of a folder's model on the bytes of a text."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    pieces = torch.tensor(list(text.encode())).split(65)
    losses = [model(input_ids=piece[None], labels=piece[None]).loss.item() for piece in pieces if len(piece) == 65]
    return sum(losses) / len(losses)


def checkpoint_entries(folder):
    """Names and sizes in a checkpoint."""
    metadata = dist.checkpoint.FileSystemReader(folder).read_metadata().state_dict_metadata
    return {name: list(getattr(entry, "size", ())) for name, entry in metadata.items()}


def compare_states(first, second):
    """The tensors of two exported folders that differ in any bit."""
    a, b = (
        transformers.AutoModelForCausalLM.from_pretrained(f, dtype=torch.float32).state_dict() for f in (first, second)
    )
    return [name for name in a if not torch.equal(a[name], b[name])]


def fsdp1_offload_message():
    """What train_cpu_offload.py says about FSDP1 where there is no accelerator."""
    module = load_script(SCRIPTS / "train_cpu_offload.py")
    try:
        module.shard_fsdp1(torch.nn.Linear(2, 2), [], torch.device("cpu"))
    except module.UsageError as error:
        return str(error)


def make_tokenizer(folder):
    """A tokenizer of a few words, as transformers saves it."""
    words = ["<unk>", "</s>", "one", "two", "three", "."]
    model = tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    names = {"eos_token": "</s>", "unk_token": "<unk>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)


TASKS = {
    f.__name__: f
    for f in (
        make_model,
        train_plainly,
        reload_error,
        loss_on,
        checkpoint_entries,
        compare_states,
        fsdp1_offload_message,
        make_tokenizer,
    )
}


# ---- the server ----


def free_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return str(server.getsockname()[1])


def fork(work, output, environment, folder):
    """A child that does `work` with its output in a file; its process id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.environ.update(environment)
        os.chdir(folder)
        with output.open("wb", buffering=0) as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        sys.stdout, sys.stderr = (os.fdopen(fd, "w", buffering=1) for fd in (1, 2))
        work()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(bool(error.code))
    except BaseException:  # noqa: BLE001  the child's end: whatever it was is printed and counted as a failure
        traceback.print_exc()
    finally:
        with contextlib.suppress(ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def wait_all(children):
    """Exit codes in the order of the children; when one is killed, so are the others, as under torchrun."""
    codes = {}
    while len(codes) < len(children):
        child, status = os.wait()
        codes[child] = os.waitstatus_to_exitcode(status)
        if codes[child] < 0:
            for other in set(children) - set(codes):
                os.kill(other, signal.SIGKILL)
    return [codes[child] for child in children]


def answer(request):
    folder = Path(request["folder"])
    if task := request.get("task"):
        result = folder / "result.json"
        output = folder / "task.log"

        def work():
            result.write_text(json.dumps(TASKS[task](*request["arguments"], **request["settings"])))

        codes = wait_all([fork(work, output, {}, folder)])
        return {
            "codes": codes,
            "output": output.read_text(),
            "result": codes == [0] and json.loads(result.read_text()),
        }
    ranks = request["ranks"]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": str(ranks)}
    shared |= {"LOCAL_WORLD_SIZE": str(ranks)}
    outputs = [folder / f"rank{rank}.log" for rank in range(ranks)]
    children = [
        fork(
            lambda: run_script(request["script"], request["faults"], request["arguments"]),
            outputs[rank],
            {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank), **request["environment"]},
            folder,
        )
        for rank in range(ranks)
    ]
    codes = wait_all(children)
    return {"codes": codes, "outputs": [path.read_text() for path in outputs]}


def warm_up():
    """Import what every run imports, once for all forks, and let transformers fill its tables; no thread is started."""
    load_script(SCRIPTS / "train_fsdp2.py")
    small = {"num_hidden_layers": 1, "num_attention_heads": 1}
    configs = transformers.LlamaConfig(**small, hidden_size=8, vocab_size=8), transformers.GPT2Config(**small, n_embd=8)
    with tempfile.TemporaryDirectory() as folder:
        for config in configs:
            transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)


def serve():
    warm_up()
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    for line in sys.stdin:
        replies.write(json.dumps(answer(json.loads(line))) + "\n")


if __name__ == "__main__":
    if sys.argv[1:]:
        run_script(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3:])
    else:
        serve()

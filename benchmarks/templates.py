"""What train_fsdp2.py costs beside a bare FSDP2 loop: same model and ranks; no logging, checkpoints or data.

    python benchmarks/templates.py                           two CPU ranks, a small model
    python benchmarks/templates.py --gpu [--planned-gib G]   one GPU, a 1B model, bf16; peak memory, MFU

Rounds of both alternate, so that a machine that is busy for a while slows both down. A figure is tokens over
seconds of all steps after the warm-up; the ratio is the median of the rounds' ratios. The target is 0.95.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import AutoConfig, AutoModelForCausalLM

TEMPLATE = Path(__file__).parents[1] / "scripts" / "train_fsdp2.py"
WARM_UP = 3  # steps that allocate


@dataclass(frozen=True)
class Case:
    """One model on one machine."""

    ranks: int
    steps: int
    micro_batch: int
    seq_len: int
    dtype: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int

    def config(self) -> dict[str, object]:
        """A Llama's config.json."""
        names = ("vocab", "hidden", "intermediate", "num")
        sizes = {name: value for name, value in asdict(self).items() if name.startswith(names)}
        kind = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": True}
        return kind | sizes


CPU = Case(2, 15, 2, 256, "fp32", 512, 256, 688, 4, 8, 4)
GPU = Case(1, 25, 4, 4096, "bf16", 128256, 2048, 8192, 16, 32, 8)  # the sizes of Llama 3.2 1B


def train_bare(case: Case, folder: Path) -> float:
    """Tokens per second and rank of the shortest correct loop, in one rank's process."""
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    with device:
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
    compute = torch.bfloat16 if case.dtype == "bf16" else None
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(case.vocab_size, (case.micro_batch, case.seq_len + 1), device=device)
    start = 0.0
    for step in range(case.steps):
        if step == WARM_UP:
            torch.cuda.synchronize() if cuda else None
            start = time.perf_counter()
        logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize() if cuda else None
    seconds = time.perf_counter() - start
    dist.destroy_process_group()
    return (case.steps - WARM_UP) * case.micro_batch * case.seq_len / seconds


def torchrun(case: Case, *command: object) -> None:
    """Run a script on the case's ranks."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={case.ranks}"]
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "PYTHONWARNINGS": "ignore"}
    line = [*launch, *map(str, command)]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{command[0]} failed:\n{done.stderr}")


def measure_template(case: Case, folder: Path, number: int) -> list[dict[str, float]]:
    """The metrics of all steps after the warm-up."""
    metrics = folder / f"metrics{number}.jsonl"
    settings = {"steps": case.steps, "micro-batch": case.micro_batch, "seq-len": case.seq_len}
    settings |= {"dtype": case.dtype, "model": folder, "checkpoint-dir": folder / f"run{number}"}
    options = [f"--{name}={value}" for name, value in settings.items()]
    torchrun(case, TEMPLATE, *options, "--from-scratch", "--save-every=0", "--export=none", f"--metrics={metrics}")
    return [json.loads(line) for line in metrics.read_text().splitlines()][WARM_UP:]


def measure_bare(case: Case, folder: Path, number: int) -> float:
    """Tokens per second and rank of train_bare()."""
    result = folder / f"bare{number}.json"
    torchrun(case, __file__, "--bare", json.dumps(asdict(case)), "--folder", folder, "--result", result)
    return float(json.loads(result.read_text()))


def compare(case: Case, rounds: int) -> dict[str, float]:
    """Both, alternating."""
    template, bare, last = [], [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(case.config()))
        for number in range(rounds):
            bare.append(measure_bare(case, folder, number))
            last = measure_template(case, folder, number)
            template.append(len(last) / sum(1 / line["tokens_per_second"] for line in last))
    found = {"template tokens/s/rank": median(template), "bare tokens/s/rank": median(bare)}
    found["ratio"] = median(mine / other for mine, other in zip(template, bare, strict=True))
    found["peak GiB"] = last[-1]["memory"] / 2**30
    return found | ({"mfu": median(line["mfu"] for line in last)} if "mfu" in last[-1] else {})


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gpu", action="store_true", help="the 1B model on one GPU")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--planned-gib", type=float, help="what scripts/plan_memory.py says of the peak")
    parser.add_argument("--json", action="store_true")
    for internal in ("--bare", "--folder", "--result"):
        parser.add_argument(internal, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.bare:
        speed = train_bare(Case(**json.loads(options.bare)), Path(options.folder))
        if os.environ.get("RANK") == "0":
            Path(options.result).write_text(json.dumps(speed))
        return
    found = compare(GPU if options.gpu else CPU, options.rounds)
    if options.planned_gib:
        found["peak over planned"] = found["peak GiB"] / options.planned_gib
    rows = [f"{name:24}{value:12,.3f}" for name, value in found.items()]
    print(json.dumps(found) if options.json else "\n".join(rows))


if __name__ == "__main__":
    main()

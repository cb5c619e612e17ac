"""Fixtures for the training templates: a server that forks ranks, torchrun, small models, a small text."""

from __future__ import annotations

import json
import os
import pty
import re
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts"
RUNNER = Path(__file__).with_name("run_ranks.py")
COMMON = [
    "--dtype",
    "fp32",
    "--seq-len",
    32,
    "--lr",
    3e-3,
    "--warmup",
    3,
    "--batch-size",
    8,
    "--micro-batch",
    1,
]
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONWARNINGS": "ignore",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",  # no pool of compiling processes for a small model
}


@dataclass(frozen=True)
class Run:
    """What a training run left behind."""

    folder: Path
    codes: list[int]
    outputs: list[str]

    @property
    def metrics(self) -> list[dict]:
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    @property
    def trajectory(self) -> list[tuple[float, float, float]]:
        """Step, loss and gradient norm; of a step that was repeated, the last."""
        last = {line["step"]: line for line in self.metrics}
        return [(step, line["loss"], line["grad_norm"]) for step, line in last.items()]

    @property
    def checkpoints(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "checkpoints").glob("step-*"))

    def probe(self, rank: int) -> dict:
        return json.loads((self.folder / f"probe.{rank}").read_text())


class Ranks:
    """The server in run_ranks.py."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, RUNNER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def train(self, script, folder, *arguments, ranks=2, faults=None, environment=None) -> Run:
        """Run a template; its checkpoints and metrics go to `folder`."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        answer = self.ask(
            script=str(SCRIPTS / script),
            folder=str(folder),
            ranks=ranks,
            arguments=[*map(str, arguments), "--metrics", "metrics.jsonl"],
            faults=faults or {},
            environment=environment or {},
        )
        return Run(Path(folder), answer["codes"], answer["outputs"])

    def task(self, name, folder, *arguments, **settings):
        """Run one of the tasks in run_ranks.py."""
        answer = self.ask(task=name, folder=str(folder), arguments=[str(a) for a in arguments], settings=settings)
        assert answer["codes"] == [0], answer["output"]
        return answer["result"]

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()


@pytest.fixture(scope="session")
def server():
    ranks = Ranks()
    yield ranks
    ranks.close()


@pytest.fixture(scope="session")
def inputs(tmp_path_factory, server) -> Path:
    """A folder with models (`model`, `tied`, `gpt2`, `deep`) and texts (`text.txt`)."""
    folder = tmp_path_factory.mktemp("inputs")
    server.task("make_model", folder, folder / "model")
    server.task("make_model", folder, folder / "tied", tied=True)
    server.task("make_model", folder, folder / "deep", layers=3)
    server.task("make_model", folder, folder / "gpt2", kind="gpt2")
    server.task("make_model", folder, folder / "small", vocab=100)
    server.task("make_model", folder, folder / "weightless", config_only=True)
    (folder / "empty.txt").touch()
    (folder / "bad.jsonl").write_text('{"text": "good"}\n{"txt": "bad"}\n')
    (folder / "latin1.txt").write_bytes("café\n".encode("latin-1"))
    lines = [f"{a} plus {b} makes {a + b}, and {a} times {b} makes {a * b}.\n" for a in range(6) for b in range(6)]
    (folder / "text.txt").write_text("".join(lines))
    return folder


@pytest.fixture(scope="session")
def arguments(inputs):
    return ["--model", inputs / "model", "--data", inputs / "text.txt", *COMMON]


@pytest.fixture(scope="session")
def plain(server, inputs, tmp_path_factory):
    """Loss and gradient norm of ten steps by a plain loop, for a model's name."""
    found = {}

    def run(name):
        if name not in found:
            settings = {"steps": 10, "batch_size": 8, "seq_len": 32, "lr": 3e-3, "warmup": 3}
            folder = tmp_path_factory.mktemp("plain")
            found[name] = server.task("train_plainly", folder, inputs / name, inputs / "text.txt", **settings)
        return [(line["step"], line["loss"], line["grad_norm"]) for line in found[name]]

    return run


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def in_terminal(*command: object, environment: dict[str, str] | None = None, columns: int = 160) -> tuple[int, str]:
    """Run a command whose standard output is a terminal in colour; its exit status, and what it wrote there."""
    place = {name: value for name, value in (environment or {}).items() if name != "NO_COLOR"}
    place |= {"TERM": "xterm-256color", "COLUMNS": str(columns), "LC_ALL": "C.UTF-8"}
    reader, writer = pty.openpty()
    with subprocess.Popen([*map(str, command)], stdout=writer, stderr=subprocess.DEVNULL, env=place) as process:
        os.close(writer)
        written = b""
        try:
            while block := os.read(reader, 2**16):
                written += block
        except OSError:  # Linux's way to say that the other side is closed
            pass
        finally:
            os.close(reader)
    return process.returncode, written.decode().replace("\r\n", "\n")


def uncoloured(text: str) -> str:
    """What a terminal shows, without the codes of its colours."""
    return re.sub(r"\x1b\[[\d;]*m", "", text)


def torchrun(folder: Path, script: str, *arguments, ranks=2, restarts=0, faults=None, launch=("--standalone",)):
    """Start a template under the real torchrun; gives the process, its output in `torchrun.log`."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "torch.distributed.run", *launch, f"--nproc-per-node={ranks}"]
    command += [f"--max-restarts={restarts}", str(RUNNER), str(SCRIPTS / script), json.dumps(faults or {})]
    command += [*map(str, arguments), "--metrics", "metrics.jsonl"]
    log = folder / f"torchrun{len(list(folder.glob('torchrun*.log')))}.log"
    with log.open("w") as file:
        return subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stdout=file, stderr=subprocess.STDOUT)


def finish(process: subprocess.Popen, folder: Path, number: int = 0) -> Run:
    """Wait for torchrun to end."""
    try:
        code = process.wait(timeout=550)
    finally:
        process.kill()
    return Run(folder, [code], [(folder / f"torchrun{number}.log").read_text()])

"""What the benchmarks share: processes that are timed and weighed (on Linux), a local server, the machine's name."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
WORK = ROOT / "build" / "bench"
SKILL = WORK / "pytorch-fsdp"
SEEKERS_SKILL = WORK / "skill-seekers"
SAMPLE = 0.05
"""Seconds between two looks at the memory of a tree of processes."""
MB = 1e6
PAGE = os.sysconf("SC_PAGE_SIZE")

_WEIGH = """
import os, sys
quiet = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_WRONLY, 0) for stream in (1, 2)]
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=quiet)
print(os.wait4(child, 0)[2].ru_maxrss)
"""
"""A process inherits the peak of the one that starts it, so a small one does."""


class Failed(Exception):
    """A program under measurement failed."""


@dataclass(frozen=True)
class Cost:
    """What a run took."""

    seconds: float
    mb: float
    """Peak of the resident memory of all its processes together, shared pages counted in each."""


def run_tree(command: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None = None) -> Cost:
    """Run a program in a session of its own; time it, and sample the memory of the whole session."""
    log = cwd / "log.txt"
    with log.open("w", encoding="utf-8") as output:
        started = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=cwd, env=env, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        with sampled(process.pid) as peak:
            status = process.wait()
            seconds = time.perf_counter() - started
    if status:
        raise Failed(f"{command[0]} ended with {status}; see {log}")
    return Cost(seconds, peak[0] / MB)


@contextmanager
def sampled(session: int) -> Iterator[list[int]]:
    """Inside, the first item is the largest resident memory that a session's processes have had, in bytes."""
    peak, over = [0], threading.Event()

    def sample() -> None:
        while not over.wait(SAMPLE):
            peak[0] = max(peak[0], sum(_resident(process, session) for process in Path("/proc").glob("[0-9]*")))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()


def _resident(process: Path, session: int) -> int:
    try:
        if os.getsid(int(process.name)) != session:
            return 0
        return int((process / "statm").read_text(encoding="ascii").split()[1]) * PAGE
    except OSError:  # it has ended
        return 0


def cold(command: Sequence[str]) -> float:
    """Milliseconds that a process takes from its start to its end."""
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, check=False)
    elapsed = time.perf_counter() - started
    if done.returncode not in (0, 1):  # 1: nothing found
        raise Failed(f"{command[:2]} ended with {done.returncode}: {done.stderr.decode()[-300:]}")
    return elapsed * 1000


def peak_mb(command: Sequence[str]) -> float:
    """The peak of a process's resident memory."""
    weighed = subprocess.run([sys.executable, "-S", "-c", _WEIGH, *command], capture_output=True, check=True)
    return int(weighed.stdout) * 1024 / MB


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the ratios of each round, so that a machine that is busy for a while slows both sides down."""
    return median(mine / other for mine, other in zip(ours, theirs, strict=True))


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on 127.0.0.1 from another process; gives the URL, with a slash at its end."""
    command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().partition("(")[2].partition(")")[0]
        finally:
            server.terminate()


def machine() -> str:
    """The machine and the day, for a report."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            model = line.partition(": ")[2]
            break
    python = platform.python_version()
    return f"{model}, {os.cpu_count()} CPUs, Python {python}, {platform.system()}, {date.today().isoformat()}"


def provenance() -> str:
    """What every report says about its figures."""
    return f"Written by `make bench`. The figures are of one run on one machine: {machine()}."


def verdict(value: float, target: float) -> str:
    """A figure that should be at most its target."""
    return f"{value:.2f} (target {target:g}{'' if value <= target else ', missed'})"

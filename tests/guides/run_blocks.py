"""Run Python blocks: `python -m tests.guides.run_blocks FOLDER`.

`FOLDER/alone-*.py` run in one process, `FOLDER/ranks-*.py` on two gloo ranks that torchrun's own launcher starts.
What they printed is then in FOLDER/NAME.log, and NAME.ok exists if they ended well. Torch is loaded once, here, and
each run is a fork, so that fifty runs cost seconds. This process itself must not compute with torch: forks of
a process whose threads have worked hang.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import runpy
import sys
import warnings
from collections.abc import Mapping
from multiprocessing import get_context
from pathlib import Path

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import elastic_launch

from tests.guides.blocks import run_module
from tests.guides.ranks import launch_config

PRELOADED = ("torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.fsdp", "torch.distributed.tensor")
TIMEOUT = 120  # seconds for one block, of which most take less than one


def outcomes(folder: Path, programs: Mapping[str, str]) -> dict[str, tuple[bool, str]]:
    """Run programs in a process of their own.

    Args:
        folder: An empty one.
        programs: Name, which begins with `alone-` or `ranks-` -> Python.

    Returns:
        Name -> whether it ended well, and what it printed.
    """
    for name, text in programs.items():
        (folder / f"{name}.py").write_text(text, "utf-8")
    run_module("run_blocks", folder)
    return {name: ((folder / f"{name}.ok").exists(), (folder / f"{name}.log").read_text()) for name in programs}


def main() -> None:
    """Run all blocks of the folder."""
    folder = Path(sys.argv[1])
    for name in PRELOADED:
        importlib.import_module(name)
    for path in sorted(folder.glob("*.py")):
        place = folder / path.stem
        place.mkdir()
        ended_well = run_on_ranks(path, place) if path.stem.startswith("ranks") else run_alone(path, place)
        if ended_well:
            path.with_suffix(".ok").touch()


def run_alone(path: Path, place: Path) -> bool:
    """One process, without what torchrun sets."""
    process = get_context("fork").Process(target=run, args=(path, place, path.with_suffix(".log")))
    process.start()
    process.join()
    return process.exitcode == 0


def run_on_ranks(path: Path, place: Path) -> bool:
    """Two ranks; the log holds the one after the other."""
    config = launch_config(2)
    logs = place.with_suffix(".logs")
    config.logs_specs = DefaultLogsSpecs(log_dir=str(logs), redirects=Std.ALL)
    try:
        elastic_launch(config, run)(path, place)
    except ChildFailedError:
        return False
    finally:
        texts = [f"{log.relative_to(logs)}\n{log.read_text()}" for log in sorted(logs.rglob("std*.log"))]
        path.with_suffix(".log").write_text("\n".join(texts))
    return True


def run(path: Path, place: Path, log: Path | None = None) -> None:
    """In the fork: as `python PATH` does, in a folder of its own; what is deprecated is an error."""
    if log:
        with log.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
    faulthandler.dump_traceback_later(TIMEOUT, exit=True, file=sys.__stderr__)
    warnings.simplefilter("error", FutureWarning)
    os.chdir(place)
    sys.argv = [str(path)]
    runpy.run_path(str(path), run_name="__main__")
    if dist.is_initialized():
        raise RuntimeError("the block leaves its process group behind")


if __name__ == "__main__":
    main()

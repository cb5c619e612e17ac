"""Measure on gloo ranks: `python -m tests.guides.ranks FOLDER MODULE...`.

The functions in each module's MEASUREMENTS run one after the other in one process group, of RANKS processes (two, if
the module does not say) that torchrun's own launcher starts. What they returned is then in FOLDER/MODULE.pickle.
Torch is loaded once, here, and each rank is a fork. This process itself must not compute with torch: forks of a
process whose threads have worked hang.
"""

from __future__ import annotations

import faulthandler
import importlib
import pickle
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

Measurement = Callable[[], Any]
TIMEOUT = 240  # seconds for one module, of which each takes less than twenty


def main() -> None:
    """Measure what the modules have."""
    folder, *names = sys.argv[1:]
    modules = [importlib.import_module(name) for name in names]
    for module in modules:
        found = measure(module.MEASUREMENTS, getattr(module, "RANKS", 2))
        (Path(folder) / f"{module.__name__}.pickle").write_bytes(pickle.dumps(found))


def measure(measurements: Sequence[Measurement], ranks: int) -> dict[str, list[Any]]:
    """The function's name -> what it returned on each rank, which must be such that it can be pickled."""
    found = elastic_launch(launch_config(ranks), run)(measurements)
    return {each.__name__: [found[rank][each.__name__] for rank in range(ranks)] for each in measurements}


def launch_config(ranks: int) -> LaunchConfig:
    """Forks on one node, a port of its own, no restarts."""
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        run_id="guides",
        start_method="fork",
        max_restarts=0,
        monitor_interval=0.1,  # seconds between two looks at the ranks
    )


@record
def run(measurements: Sequence[Measurement]) -> dict[str, Any]:
    """In the fork."""
    faulthandler.dump_traceback_later(TIMEOUT, exit=True, file=sys.__stderr__)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = {}
    for each in measurements:
        torch.manual_seed(0)
        found[each.__name__] = each()
        dist.barrier()
    dist.destroy_process_group()
    return found


if __name__ == "__main__":
    main()

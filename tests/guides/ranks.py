"""Two gloo ranks that torchrun's own launcher starts, for what is to be measured on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

Measurement = Callable[[], Any]


def launch_config(ranks: int, start_method: str) -> LaunchConfig:
    """One node, a port of its own, no restarts."""
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        run_id="guides",
        start_method=start_method,
        max_restarts=0,
        monitor_interval=0.1,  # seconds between two looks at the ranks
    )


def measure(*measurements: Measurement, ranks: int = 2) -> dict[str, list[Any]]:
    """Run functions one after the other in one process group.

    Args:
        measurements: Functions of a module that can be imported; they return what can be pickled.
        ranks: Processes.

    Returns:
        The function's name -> what it returned on each rank.
    """
    found = elastic_launch(launch_config(ranks, "spawn"), _run)(measurements)
    return {each.__name__: [found[rank][each.__name__] for rank in range(ranks)] for each in measurements}


@record
def _run(measurements: Sequence[Measurement]) -> dict[str, Any]:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = {}
    for each in measurements:
        torch.manual_seed(0)
        found[each.__name__] = each()
        dist.barrier()
    dist.destroy_process_group()
    return found

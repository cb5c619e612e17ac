"""Small models, sharded, for what is measured on two ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.debug import CommDebugMode

SIZE = 8


def blocks(num_blocks: int = 2, size: int = SIZE) -> nn.Sequential:
    """Blocks of a linear layer and an activation, the same weights on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(size, size), nn.GELU()) for _ in range(num_blocks)))


def shard(model: nn.Sequential, **settings: Any) -> Any:
    """Each block, then the root."""
    for block in model:
        fully_shard(block, **settings)
    return fully_shard(model, **settings)


def batch(rank: int | None = None) -> Tensor:
    """A rank's own data; without a rank, this one's."""
    generator = torch.Generator().manual_seed(dist.get_rank() if rank is None else rank)
    return torch.randn(2, SIZE, generator=generator)


def mean_gradients(model: nn.Module, ranks: int = 2) -> list[Tensor]:
    """The gradients of a plain model over the data of all ranks: what data parallelism is to give."""
    for rank in range(ranks):
        (model(batch(rank)).sum() / ranks).backward()
    return [parameter.grad for parameter in model.parameters()]


def whole(tensors: Any) -> list[Tensor]:
    """DTensors, gathered; collective."""
    return [tensor.full_tensor() for tensor in tensors]


def equal(some: list[Tensor], others: list[Tensor]) -> bool:
    """Whether tensors are alike but for rounding."""
    return len(some) == len(others) and all(map(torch.allclose, some, others))


@contextmanager
def collectives() -> Iterator[dict[str, int]]:
    """How many of each collective run inside, by its name in c10d; filled when the block ends."""
    found: dict[str, int] = {}
    with CommDebugMode() as mode:
        yield found
    names = {"_allgather_base_": "all_gather", "_reduce_scatter_base_": "reduce_scatter", "allreduce_": "all_reduce"}
    found |= {names[str(each).rpartition(".")[2]]: count for each, count in mode.get_comm_counts().items()}


def message(action: Any) -> str:
    """Type and first line of what an action raises; CheckpointException is no Exception."""
    try:
        action()
    except BaseException as error:  # noqa: BLE001
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
    return "nothing raised"

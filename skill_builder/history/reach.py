"""Which modules of torch the history reads, and which paths users write where the shortest is not it."""

from __future__ import annotations

PACKAGES = (
    "torch.accelerator",
    "torch.amp",
    "torch.cpu.amp",
    "torch.cuda.amp",
    "torch.cuda.memory",
    "torch.distributed",
    "torch.nn.parallel",
    "torch.nn.utils.clip_grad",
    "torch.utils.checkpoint",
)
"""Modules and packages whose public names are followed, with everything public below them."""

PRIVATE_PACKAGES = (
    "torch.distributed._composable",  # home of fully_shard and replicate before torch.distributed.fsdp
    "torch.distributed._dist2",  # has an official page
    "torch.distributed._functional_collectives",  # named as the replacement by deprecations
    "torch.distributed._local_tensor",  # has an official page
    "torch.distributed._shard.checkpoint",  # home of torch.distributed.checkpoint before 2.0
    "torch.distributed._symmetric_memory",  # has an official page
    "torch.distributed._tensor",  # home of DTensor before torch.distributed.tensor
)
"""Modules with a private name that people import all the same."""

PRIVATE_NAMES = (
    "torch.cuda.memory._dump_snapshot",
    "torch.cuda.memory._record_memory_history",
    "torch.cuda.memory._snapshot",
)
"""Objects with a private name that the official pages document."""

WINDOWS = ("torch", "torch.cuda", "torch.nn", "torch.nn.utils", "torch.utils")
"""Packages of which only the names that lead into PACKAGES are followed, such as ``torch.autocast``."""

HOMES = ("torch.amp", "torch.distributed.device_mesh")
"""Modules whose names are documented there, although shorter paths lead to the same objects."""


def is_read(module: str) -> bool:
    """Whether the public names of a module belong to the history."""
    roots = [root for root in PACKAGES + PRIVATE_PACKAGES if is_below(module, root)]
    if not roots:
        return False
    rest = module.removeprefix(max(roots, key=len))
    return "._" not in rest


def is_ours(module: str) -> bool:
    """Whether what a module defines belongs to the history once a public name or class leads to it.

    Private modules count: ``torch.distributed.fsdp._fully_shard`` has what ``torch.distributed.fsdp`` offers.
    """
    return any(is_below(module, package) for package in PACKAGES)


def is_bound(path: str) -> bool:
    """Whether a path leads to C++, of which no Python source tells the members.

    The base of all tensors does not count: what DTensor adds to it is Python.
    """
    return path.startswith("torch._C.") and path != "torch._C.TensorBase"


def is_below(name: str, root: str) -> bool:
    """Whether a dotted name is the root or stands below it."""
    return name == root or name.startswith(root + ".")

"""Errors, provoked: each function raises or warns as the guides say. Two gloo ranks run those in `ON_RANKS`."""

from __future__ import annotations

import copy
import tempfile
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint import state_dict as named
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

SIZE = 4


def model() -> nn.Sequential:
    """Two layers; the same weights on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(SIZE, 8), nn.ReLU(), nn.Linear(8, SIZE))


def batch() -> torch.Tensor:
    """Two samples."""
    return torch.ones(2, SIZE)


def folder() -> Path:
    """A new folder that both ranks know."""
    made = [tempfile.mkdtemp()]
    dist.broadcast_object_list(made)
    return Path(made[0])


# -- fully_shard --


def parameter_and_tensor() -> None:
    fully_shard(model())[0].weight + 1.0 * torch.ones(8, SIZE)


def forward_called() -> None:
    fully_shard(model()).forward(batch())


def container() -> None:
    fully_shard(nn.ModuleList([nn.Linear(2, 2)]))


def sharded_twice() -> None:
    fully_shard(fully_shard(model()))


def mesh_of_three_dimensions() -> None:
    fully_shard(model(), mesh=init_device_mesh("cpu", (1, 1, 2), mesh_dim_names=("pp", "dp", "tp")))


def still_on_meta() -> None:
    with torch.device("meta"):
        lazy = model()
    fully_shard(lazy)(batch())


def two_dtypes() -> None:
    fully_shard(nn.Sequential(nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE).bfloat16()))(batch())


def inputs_not_cast() -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, cast_forward_inputs=False)
    fully_shard(model(), mp_policy=policy)(batch())


def tied_in_two_groups() -> None:
    tied = nn.Sequential(nn.Embedding(8, SIZE), nn.Linear(SIZE, 8, bias=False))
    tied[1].weight = tied[0].weight
    fully_shard(tied[0])
    fully_shard(tied)(torch.tensor([1, 2]))


def part_before_root() -> None:
    sharded = model()
    fully_shard(sharded[0])
    fully_shard(sharded)
    sharded[0](batch())
    sharded(batch())


def deepcopied() -> None:
    copy.deepcopy(fully_shard(model()))


def two_meshes_clipped() -> None:
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
    partly = model()
    parallelize_module(partly, mesh["tp"], {"0": ColwiseParallel(use_local_output=True)})
    partly[2] = nn.Linear(8 // 2, SIZE)
    fully_shard(partly, mesh=mesh["dp"])(batch()).sum().backward()
    nn.utils.clip_grad_norm_(partly.parameters(), 1.0)


def inference_first() -> None:
    sharded = fully_shard(model())
    with torch.inference_mode():
        sharded(batch())
    sharded(batch()).sum().backward()


def fsdp1_on_cpu() -> None:
    FullyShardedDataParallel(model())


# -- autograd --


def nothing_to_train() -> None:
    frozen = model().requires_grad_(False)
    checkpoint(frozen, batch(), use_reentrant=True).sum().backward()


def recomputed(second: Callable[[torch.Tensor], torch.Tensor]) -> None:
    weight = torch.ones(SIZE, SIZE, requires_grad=True)
    times = iter((lambda x: (x @ weight).sin(), second))

    def once_and_again(x: torch.Tensor) -> torch.Tensor:
        return next(times)(x)

    checkpoint(once_and_again, batch(), use_reentrant=False).sum().backward()


def fewer_saved() -> None:
    weight = torch.ones(SIZE, SIZE, requires_grad=True)
    recomputed(lambda x: x @ weight)


def other_shapes() -> None:
    weight = torch.ones(SIZE, SIZE, requires_grad=True)
    recomputed(lambda x: (x[:1] @ weight).sin())


def unused_parameter() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    wrapped = DistributedDataParallel(Half())
    for _ in range(2):
        wrapped(batch()).sum().backward()


class Twice(nn.Module):
    """Reentrant checkpointing of one layer, two times."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.unused = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.layer, checkpoint(self.layer, x, use_reentrant=True), use_reentrant=True)


def ready_twice() -> None:
    wrapped = DistributedDataParallel(Twice())
    for _ in range(2):
        wrapped(batch().requires_grad_()).sum().backward()


def not_finite() -> None:
    sharded = fully_shard(model())
    (sharded(batch()).sum() * float("inf")).backward()
    nn.utils.clip_grad_norm_(sharded.parameters(), 1.0, error_if_nonfinite=True)


def fp16_weights_unscaled() -> None:
    half = model().half()
    optimizer, scaler = torch.optim.SGD(half.parameters()), torch.amp.GradScaler("cpu")
    scaler.scale(half(batch().half()).sum()).backward()
    scaler.unscale_(optimizer)


def nothing_scaled() -> None:
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(1))
    scaler.step(torch.optim.SGD(model().parameters()))


# -- checkpoints --


def saved() -> tuple[Path, dict[str, Any]]:
    place, state = folder(), {"model": named.get_model_state_dict(fully_shard(model()))}
    dcp.save(state, checkpoint_id=place)
    return place, state


def key_missing() -> None:
    place, state = saved()
    dcp.load({"model": {**state["model"], "new": torch.zeros(1)}}, checkpoint_id=place)


def size_changed() -> None:
    place, state = saved()
    dcp.load({"model": {**state["model"], "0.bias": torch.zeros(9)}}, checkpoint_id=place)


def nothing_there() -> None:
    dcp.load({"model": named.get_model_state_dict(fully_shard(model()))}, checkpoint_id=folder())


def nothing_to_set() -> None:
    sharded = fully_shard(model())
    optimizer = torch.optim.AdamW(sharded.parameters())
    named.set_state_dict(sharded, optimizer, model_state_dict={}, optim_state_dict={})


def moments_missing() -> None:
    sharded = fully_shard(model())
    optimizer = torch.optim.AdamW(sharded.parameters())
    state = named.get_optimizer_state_dict(sharded, optimizer)
    del state["state"]["0.weight"]
    named.set_optimizer_state_dict(sharded, optimizer, state)


def other_groups() -> None:
    state = torch.optim.AdamW(model().parameters()).state_dict()
    torch.optim.AdamW(nn.Linear(2, 2).parameters()).load_state_dict(state)


def plain_dict_into_shards() -> None:
    fully_shard(model()).load_state_dict(model().state_dict())


def object_in_file() -> None:
    with tempfile.TemporaryFile() as file:
        torch.save({"pause": timedelta(seconds=1)}, file)
        file.seek(0)
        torch.load(file)


# -- process groups --


def initialised_twice() -> None:
    dist.init_process_group("gloo")


def nccl_on_cpu() -> None:
    dist.new_group(backend="nccl")


def not_my_group() -> None:
    dist.all_reduce(torch.ones(1), group=dist.GroupMember.NON_GROUP_MEMBER)


def no_backend_for_device() -> None:
    dist.distributed_c10d._get_default_group()._get_backend(torch.device("xpu"))


ON_RANKS = (
    parameter_and_tensor,
    forward_called,
    container,
    sharded_twice,
    mesh_of_three_dimensions,
    still_on_meta,
    two_dtypes,
    inputs_not_cast,
    tied_in_two_groups,
    part_before_root,
    deepcopied,
    two_meshes_clipped,
    inference_first,
    fsdp1_on_cpu,
    nothing_to_train,
    fewer_saved,
    other_shapes,
    unused_parameter,
    ready_twice,
    not_finite,
    fp16_weights_unscaled,
    nothing_scaled,
    key_missing,
    size_changed,
    nothing_there,
    nothing_to_set,
    moments_missing,
    other_groups,
    plain_dict_into_shards,
    object_in_file,
    initialised_twice,
    nccl_on_cpu,
    not_my_group,
    no_backend_for_device,
)


def provoked() -> dict[str, str]:
    """What each function raised, and warned of."""
    return {each.__name__: what_it_says(each) for each in ON_RANKS}


def what_it_says(provoke: Callable[[], None]) -> str:
    """The message of the exception and of the warnings."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            provoke()
            said = ""
        except BaseException as error:  # noqa: BLE001 - DCP's CheckpointException is no Exception
            said = f"{type(error).__name__}: {error}"
    return "\n".join([said, *(str(warning.message) for warning in warned)])


# -- in a process of its own --


IMPORTS = """import os, tempfile, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from datetime import timedelta
"""
ALONE = {
    "environment missing": "dist.init_process_group('gloo')",
    "before init": "dist.all_reduce(torch.ones(1))",
    "port taken": "first = dist.TCPStore('127.0.0.1', 0, 1, True); dist.TCPStore('127.0.0.1', first.port, 1, True)",
    "nobody answers": "dist.TCPStore('127.0.0.1', 1, 2, False, timedelta(seconds=1))",
    "nobody comes": "dist.TCPStore('127.0.0.1', 0, 2, True, timedelta(seconds=1))",
    "interface missing": "os.environ['GLOO_SOCKET_IFNAME'] = 'nosuch0'; dist.init_process_group('gloo',"
    " init_method=f'file://{tempfile.mktemp()}', rank=0, world_size=1)",
    "saved alone": "dcp.save({'a': torch.zeros(1)}, checkpoint_id=tempfile.mkdtemp())",
}
"""What is provoked -> the statement that does it, after IMPORTS."""

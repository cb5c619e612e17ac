"""What the guides say of launching, process groups and meshes is so: measured on four ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import (
    Backend,
    BackendConfig,
    _get_default_timeout,
    _process_group_name,
    _set_pg_timeout,
)
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tests.guides.blocks import blocks
from tests.guides.toys import collectives

RANKS = 4
HALF_AN_HOUR = timedelta(minutes=30)
HEADERS = Path(torch.__file__).parent / "include/torch/csrc/distributed/c10d"


def on_rank0(measured, name):
    return measured[name][0]


def layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))


def batch(rank):
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(rank))


def hsdp_mesh():
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))


def timeout_of(group):
    return group._get_backend(torch.device("cpu")).options._timeout


def message(call):
    try:
        call()
    except (KeyError, ValueError, RuntimeError) as error:
        return str(error)
    return ""


# -- meshes --


def hsdp():
    mesh, model = hsdp_mesh(), layers()
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    counts = {}
    for last in (False, True):
        model.set_requires_all_reduce(last)
        with collectives() as count:
            (model(batch(dist.get_rank())).sum() / 2).backward()
        counts[last] = dict(count)
    plain = layers()
    for rank in range(4):
        (plain(batch(rank)).sum() / 4).backward()
    weight = model[0].weight
    alike = torch.allclose(weight.grad.full_tensor(), plain[0].weight.grad, atol=1e-6)
    return str(weight.placements), tuple(weight.to_local().shape), counts, alike


def test_hsdp_replicates_over_the_first_dimension_and_shards_over_the_second(measured):
    placements, shape, _, _ = on_rank0(measured, "hsdp")
    assert placements == "(Replicate(), Shard(dim=0))"
    assert shape == (8, 8)  # 16 rows over 2 ranks, not over 4


def test_without_all_reduce_the_reduce_scatter_stays(measured):
    _, _, counts, _ = on_rank0(measured, "hsdp")
    assert counts[False]["reduce_scatter"] == counts[True]["reduce_scatter"] == 2
    assert counts[False].get("all_reduce", 0) == 0
    assert counts[True]["all_reduce"] == 2  # one for each block


def test_hsdp_averages_over_all_ranks_and_accumulates(measured):
    assert all(alike for _, _, _, alike in measured["hsdp"])


def slices():
    mesh = init_device_mesh("cpu", (1, 2, 2), mesh_dim_names=("dp_replicate", "dp_shard", "tp"))
    data = mesh["dp_replicate", "dp_shard"]._flatten("data")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        mesh["data"]
    return {
        "data": (data.get_local_rank(), data.size()),
        "tp": dist.get_process_group_ranks(mesh.get_group("tp")),
        "against the order": message(lambda: mesh["tp", "dp_shard"]),
        "by name": [str(warning.message) for warning in warned],
    }


def test_neighbours_are_in_the_last_dimension_and_share_the_data(measured):
    assert [(found["data"], found["tp"]) for found in measured["slices"]] == [
        ((0, 2), [0, 1]),
        ((0, 2), [0, 1]),
        ((1, 2), [2, 3]),
        ((1, 2), [2, 3]),
    ]


def test_slices_keep_the_order_and_flat_dimensions_are_kept_by_hand(measured):
    found = on_rank0(measured, "slices")
    assert "Mesh dim indices should be in ascending order" in found["against the order"]
    assert "Slicing a flattened dim from root mesh will be deprecated" in found["by name"][0]


def timeouts():
    world = dist.group.WORLD
    before = timeout_of(world)
    _set_pg_timeout(timedelta(seconds=99), world)
    one, two = init_device_mesh("cpu", (4,)), hsdp_mesh()
    found = [timeout_of(one.get_group()), *map(timeout_of, two.get_all_groups()), timeout_of(dist.new_group())]
    for group in two.get_all_groups():
        _set_pg_timeout(timedelta(seconds=77), group)
    found += map(timeout_of, two.get_all_groups())
    _set_pg_timeout(before, world)
    return found, one.get_group() is world


def test_only_a_dimension_as_long_as_the_world_has_its_timeout(measured):
    found, is_world = on_rank0(measured, "timeouts")
    assert is_world
    assert found[:4] == [timedelta(seconds=99), HALF_AN_HOUR, HALF_AN_HOUR, HALF_AN_HOUR]
    assert found[4:] == [timedelta(seconds=77)] * 2


def tensor_parallel():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = nn.Sequential(*layers(), nn.LayerNorm(8))
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    (model(batch(mesh["dp"].get_local_rank())) ** 3).sum().backward()
    scope = {}
    exec(next(block.text for block in blocks("python") if "def clip_by_mesh" in block.text), scope)
    whole = torch.linalg.vector_norm(torch.stack([p.grad.full_tensor().norm() for p in model.parameters()]))
    total = scope["clip_by_mesh"](list(model.parameters()), 0.5)
    after = torch.linalg.vector_norm(torch.stack([p.grad.full_tensor().norm() for p in model.parameters()]))
    sharded = layers()
    fully_shard(sharded, mesh=mesh["dp"])
    return {
        "placements": str(model[0].weight.placements),
        "norms": (whole.item(), total.item(), after.item()),
        "too late": message(lambda: parallelize_module(sharded, mesh["tp"], {"0": ColwiseParallel()})),
    }


def test_tensor_parallel_comes_first(measured):
    found = on_rank0(measured, "tensor_parallel")
    assert found["placements"] == "(_StridedShard(dim=0, sf=2), Shard(dim=0))"
    assert "Cannot distribute a DTensor with device mesh" in found["too late"]


def test_clipping_mesh_by_mesh_is_clipping_by_the_whole_norm(measured):
    whole, total, after = on_rank0(measured, "tensor_parallel")["norms"]
    assert total == pytest.approx(whole, rel=1e-4)
    assert after == pytest.approx(0.5, rel=1e-3)


def context_parallel_shards():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_shard", "cp"))
    model = fully_shard(layers(), mesh=mesh["dp_shard", "cp"]._flatten("dp_shard_cp"))
    return tuple(model[0].weight.to_local().shape)


def test_flattened_dimensions_shard_over_both(measured):
    assert on_rank0(measured, "context_parallel_shards") == (4, 8)


# -- process groups --


def groups():
    rank = dist.get_rank()
    others = dist.new_group([2, 3])
    ordered, as_given = dist.new_group([3, 0]), dist.new_group([3, 0], sort_ranks=False)
    sent = {}
    if rank in (0, 3):
        by_global, by_own = torch.tensor([rank]), torch.tensor([rank])
        dist.broadcast(by_global, src=3, group=ordered)
        dist.broadcast(by_own, group_src=0, group=ordered)
        sent = {"src": by_global.item(), "group_src": by_own.item()}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        tensor = torch.tensor([rank])
        dist.all_reduce(tensor, group=others)
    return {
        "handle": others == dist.GroupMember.NON_GROUP_MEMBER,
        "rank": dist.get_rank(others),
        "sum": tensor.item(),
        "warned": [str(warning.message) for warning in warned],
        "sent": sent,
        "orders": [dist.get_process_group_ranks(group) for group in (ordered, as_given)] if rank == 0 else None,
        "hashed name": _process_group_name([0, 1], use_hashed_name=True),
    }


def test_a_rank_outside_a_group_gets_a_mark_and_its_collectives_do_nothing(measured):
    outside, _, inside, _ = measured["groups"]
    assert (outside["handle"], outside["rank"], outside["sum"]) == (True, -1, 0)
    assert "which does not belong to the given group" in outside["warned"][0]
    assert (inside["handle"], inside["rank"], inside["sum"], inside["warned"]) == (False, 0, 5, [])


def test_ranks_are_sorted_unless_told_otherwise(measured):
    assert on_rank0(measured, "groups")["orders"] == [[0, 3], [3, 0]]


def test_src_is_the_global_rank_and_group_src_the_groups_own(measured):
    assert [measured["groups"][rank]["sent"] for rank in (0, 3)] == [{"src": 3, "group_src": 0}] * 2


def test_local_synchronization_names_a_group_by_how_many_a_rank_knows(measured):
    """Ranks 0 and 1 would wait for each other under different names: rank 0 is in two groups more."""
    name_on_0, name_on_1 = (measured["groups"][rank]["hashed name"] for rank in (0, 1))
    assert name_on_0 != name_on_1


def recorder():
    dist.all_reduce(torch.ones(3))
    trace = json.loads(torch._C._distributed_c10d._dump_fr_trace_json())
    return [entry["profiling_name"] for entry in trace["entries"]][-1]


def test_the_flight_recorder_is_on_and_keeps_two_thousand(measured):
    assert on_rank0(measured, "recorder") == "gloo:all_reduce"
    header = (HEADERS / "FlightRecorder.hpp").read_text("utf-8")
    assert '{"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"}, 2000' in " ".join(header.split())


def missing_rank():
    group = dist.new_group()
    said = ""
    if dist.get_rank() != 2:
        said = message(lambda: dist.monitored_barrier(group, timeout=timedelta(seconds=1)))
    return said


def test_a_monitored_barrier_names_the_missing_rank(measured):
    assert "Rank 2 failed to pass monitoredBarrier in 1000 ms" in on_rank0(measured, "missing_rank")


MEASUREMENTS = (
    hsdp,
    slices,
    timeouts,
    tensor_parallel,
    context_parallel_shards,
    groups,
    recorder,
    missing_rank,
)


# -- backends and defaults --


def test_ten_minutes_hold_for_a_backend_that_is_exactly_nccl():
    header = (HEADERS / "ProcessGroupNCCL.hpp").read_text("utf-8")
    assert "kProcessGroupNCCLDefaultTimeout = std::chrono::milliseconds(10 * 60 * 1000)" in " ".join(header.split())
    assert _get_default_timeout(Backend("cpu:gloo,cuda:nccl")) == HALF_AN_HOUR
    assert _get_default_timeout(Backend("undefined")) == HALF_AN_HOUR


@pytest.mark.skipif(torch.accelerator.is_available(), reason="says what is so without one")
def test_without_a_backend_there_is_the_detected_devices_alone():
    assert str(BackendConfig(Backend("undefined"))) == "cpu:gloo"


def test_variables_of_the_watchdog_exist():
    header = (HEADERS / "ProcessGroupNCCL.hpp").read_text("utf-8")
    for name in ("HEARTBEAT_TIMEOUT_SEC", "DUMP_ON_TIMEOUT", "ASYNC_ERROR_HANDLING"):
        assert f"TORCH_NCCL_{name}" in header


# -- torchrun --


PROGRAM = """
import json, os, sys, torch, torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    said = ""
    try:
        dist.all_reduce(torch.ones(2 + rank))
    except RuntimeError as error:
        said = str(error)
    with open(f"{sys.argv[1]}/{rank}.json", "w") as file:
        json.dump({"environment": dict(os.environ), "said": said}, file)
    if rank == 1:
        raise ValueError("words of its own")

main()
"""


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    """What two ranks wrote, and what torchrun printed, with TORCH_DISTRIBUTED_DEBUG=DETAIL."""
    folder = tmp_path_factory.mktemp("launched")
    (folder / "program.py").write_text(PROGRAM, "utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", folder / "program.py", folder]
    run = subprocess.run(
        [sys.executable, "-m", *map(str, command)],
        env=environment | {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
        capture_output=True,
        text=True,
        check=False,
    )
    return [json.loads((folder / f"{rank}.json").read_text("utf-8")) for rank in (0, 1)], run.stderr


def test_torchrun_sets_what_the_guide_lists(launched):
    (_, second), _ = launched
    wanted = {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "0",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "OMP_NUM_THREADS": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }
    assert {name: second["environment"].get(name) for name in wanted} == wanted
    assert {"MASTER_ADDR", "MASTER_PORT"} <= set(second["environment"])


def test_detail_compares_every_collective(launched):
    ranks, _ = launched
    assert all("Detected mismatch between collectives on ranks" in found["said"] for found in ranks)


def test_record_shows_the_exception_in_the_summary(launched):
    _, printed = launched
    assert "ValueError: words of its own" in printed.partition("Root Cause")[2]

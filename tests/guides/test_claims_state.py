"""What the guides say of state dicts, checkpoints and FSDP1 is so: measured on two ranks, and read on one."""

import inspect
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from tests.guides.blocks import ROOT
from tests.guides.toys import batch, blocks, equal, mean_gradients, message, shard, whole

FULL = StateDictOptions(full_state_dict=True)
CPU = torch.device("cpu")


def shared_folder():
    """A folder that both ranks know."""
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder)
    return Path(folder[0])


def trained(model):
    """An optimizer that has stepped once."""
    optimizer = torch.optim.AdamW(model.parameters())
    model(batch()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def kinds():
    model = shard(blocks())
    options = {
        "default": StateDictOptions(),
        "full": FULL,
        "full on the host": StateDictOptions(full_state_dict=True, cpu_offload=True),
        "on the host": StateDictOptions(cpu_offload=True),
    }
    states = {name: get_model_state_dict(model, options=each) for name, each in options.items()}
    return {name: {type(tensor).__name__ for tensor in state.values()} for name, state in states.items()}


def test_each_call_returns_shards_or_whole_tensors(measured):
    everywhere = {"default": {"DTensor"}, "full": {"Tensor"}, "on the host": {"DTensor"}}
    assert measured["kinds"] == [
        everywhere | {"full on the host": {"Tensor"}},
        everywhere | {"full on the host": set()},
    ]


def shared_memory():
    model = shard(blocks())
    states = [get_model_state_dict(model), get_model_state_dict(model, options=StateDictOptions(cpu_offload=True))]
    with torch.no_grad():
        model[0][0].weight.fill_(7)
    return [state["0.0.weight"].to_local()[0, 0].item() for state in states]


def test_state_dicts_share_memory_with_the_model(measured):
    assert measured["shared_memory"][0] == [7, 7]


def optimizer_keys():
    model = shard(blocks())
    optimizer = trained(model)
    flat = get_optimizer_state_dict(model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=True))
    named = get_optimizer_state_dict(model, optimizer)
    return (
        list(optimizer.state_dict()["state"]),
        next(iter(named["state"])),
        sorted(flat)[-1],
        "param_groups.0.0.bias.lr" in flat,
    )


def test_optimizer_states_go_by_number_or_by_name(measured):
    assert measured["optimizer_keys"][0] == ([0, 1, 2, 3], "0.0.weight", "state.1.0.weight.step", True)


def states_of_a_new_optimizer():
    model = shard(blocks())
    optimizer = torch.optim.AdamW(model.parameters())
    before = whole(model.parameters())
    get_state_dict(model, optimizer)
    unchanged = equal(before, whole(model.parameters()))
    with_gradients = torch.optim.AdamW(model.parameters())
    model(batch()).sum().backward()
    empty = get_optimizer_state_dict(model, with_gradients)["state"]
    optimizer.step()
    return unchanged, optimizer.state[model[0][0].weight]["step"].item(), empty


def test_asking_a_new_optimizer_for_its_state_counts_a_step(measured):
    assert measured["states_of_a_new_optimizer"][0] == (True, 2.0, {})


def frozen_left_out():
    model = blocks()
    model[0].requires_grad_(False)
    return list(get_model_state_dict(shard(model), options=StateDictOptions(ignore_frozen_params=True)))


def test_frozen_parameters_may_be_left_out(measured):
    assert measured["frozen_left_out"][0] == ["1.0.weight", "1.0.bias"]


def compiled_names():
    model = torch.compile(shard(blocks()), backend="eager")
    return next(iter(model.state_dict())), next(iter(get_model_state_dict(model)))


def test_helpers_drop_the_compiler_prefix(measured):
    assert measured["compiled_names"][0] == ("_orig_mod.0.0.weight", "0.0.weight")


def saved_checkpoint():
    """A checkpoint of a model and what else a run needs; read again by the tests, in one process."""
    folder, model = shared_folder(), shard(blocks())
    optimizer = trained(model)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "rank": dist.get_rank(), "schedule": schedule}
    dcp.save(state, checkpoint_id=folder / "step")
    schedule.step()
    loaded = {"rank": -1, "schedule": schedule}
    nothing = dcp.load(loaded, checkpoint_id=folder / "step")
    full = get_model_state_dict(model, options=FULL)
    return folder, full, nothing, loaded["rank"], schedule.last_epoch


def test_loading_fills_in_place_and_ranks_share_a_key(measured):
    [(nothing, value, last_epoch), other] = [found[2:] for found in measured["saved_checkpoint"]]
    assert (nothing, last_epoch) == (None, 0)
    assert value in (0, 1) and other == (None, value, 0)


def test_a_checkpoint_is_a_folder_with_metadata(measured):
    folder = measured["saved_checkpoint"][0][0] / "step"
    assert sorted(path.name for path in folder.iterdir()) == [".metadata", "__0_0.distcp", "__1_0.distcp"]


def test_one_process_reads_a_checkpoint_of_two(measured):
    folder, full, *_ = measured["saved_checkpoint"][0]
    plain = blocks()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load({"model": plain.state_dict()}, checkpoint_id=folder / "step", no_dist=True)
    assert equal(list(plain.parameters()), list(full.values()))


def test_a_checkpoint_becomes_one_file(measured, tmp_path):
    folder, full, *_ = measured["saved_checkpoint"][0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp_to_torch_save(folder / "step", tmp_path / "model.pt")
    state = torch.load(tmp_path / "model.pt", weights_only=True)
    assert equal(list(state["model"].values()), list(full.values()))
    assert set(state) >= {"model", "optimizer", "rank"}


def loads_that_do_not_fit():
    folder = shared_folder()
    dcp.save({"model": get_model_state_dict(shard(blocks()))}, checkpoint_id=folder)

    def failure(model):
        try:
            dcp.load({"model": get_model_state_dict(shard(model))}, checkpoint_id=folder)
        except dcp.CheckpointException as error:
            return isinstance(error, Exception), str(next(iter(error.failures.values()))[0])

    larger = get_model_state_dict(shard(blocks(3)))
    partial = dcp.DefaultLoadPlanner(allow_partial_load=True)
    dcp.load({"model": larger}, checkpoint_id=folder, planner=partial)
    cast = {"model": {"0.0.weight": torch.zeros(8, 8, dtype=torch.bfloat16)}}
    dcp.load(cast, checkpoint_id=folder)
    expected = whole([get_model_state_dict(shard(blocks()))["0.0.weight"]])
    return {
        "missing": failure(blocks(3)),
        "shape": failure(blocks(2, 4)),
        "partial": equal(whole([larger["0.0.weight"]]), expected),
        "cast": torch.equal(cast["model"]["0.0.weight"], expected[0].bfloat16()),
    }


def test_loads_that_do_not_fit_raise_what_is_no_exception(measured):
    assert measured["loads_that_do_not_fit"][0] == {
        "missing": (False, "Missing key in checkpoint state_dict: model.2.0.weight."),
        "shape": (
            False,
            "Size mismatch between saved torch.Size([8, 8]) and current: torch.Size([4, 4]) for model.0.0.weight",
        ),
        "partial": True,
        "cast": True,
    }


def background():
    folder, model = shared_folder(), shard(blocks())
    expected = whole(model.parameters())
    future = dcp.async_save({"model": get_model_state_dict(model)}, checkpoint_id=folder / "step")
    with torch.no_grad():
        model[0][0].weight.fill_(9)
    future.result()
    state = get_model_state_dict(model)
    dcp.load({"model": state}, checkpoint_id=folder / "step")
    return equal(whole(state.values()), expected)


def test_a_background_save_has_copied_when_it_returns(measured):
    assert measured["background"][0]


def test_a_background_save_asks_for_a_cpu_backend():
    assert "A CPU backend must be enabled for async save" in inspect.getsource(dcp.async_save)


def whole_state_in():
    with torch.device("meta"):
        model = blocks()
    shard(model)
    weights = blocks().state_dict() if dist.get_rank() == 0 else {}
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, weights, options=options)
    same = equal(whole(model.parameters()), list(blocks().state_dict().values()))
    plain = message(lambda: shard(blocks()).load_state_dict(blocks().state_dict()))
    without = message(lambda: set_model_state_dict(model, {}, options=StateDictOptions(broadcast_from_rank0=True)))
    return same, {type(tensor).__name__ for tensor in weights.values()}, plain, without


def test_whole_weights_are_dealt_out_from_rank_0(measured):
    same, given, plain, without = measured["whole_state_in"][0]
    assert same
    assert given == {"DTensor"}  # the dictionary that was handed over
    assert plain.startswith("RuntimeError: Error(s) in loading state_dict for FSDPSequential")
    assert without == "ValueError: full_state_dict must be True when broadcast_from_rank0 is True."


def optimizer_state_missing():
    model = shard(blocks())
    optimizer = trained(model)
    state = get_optimizer_state_dict(model, optimizer)
    del state["state"]["0.0.weight"]
    return message(lambda: set_optimizer_state_dict(model, optimizer, optim_state_dict=state))


def test_a_missing_optimizer_state_is_named(measured):
    expected = "RuntimeError: Missing optimizer state for parameter '0.0.weight' in checkpoint."
    assert measured["optimizer_state_missing"][0].startswith(expected)


def wrapped(**settings):
    """An FSDP1 model, a unit a linear layer."""
    policy = ModuleWrapPolicy({nn.Linear})
    return FullyShardedDataParallel(blocks(), auto_wrap_policy=policy, use_orig_params=True, device_id=CPU, **settings)


def across():
    found = {}
    for name, settings in {"groups": {}, "mesh": {"device_mesh": init_device_mesh("cpu", (2,))}}.items():
        folder, old, new = shared_folder(), wrapped(**settings), shard(blocks())
        old_state = dict(zip(("model", "optimizer"), get_state_dict(old, trained(old)), strict=True))
        dcp.save(old_state, checkpoint_id=folder / "step")
        optimizer = torch.optim.AdamW(new.parameters())
        weights, moments = get_state_dict(new, optimizer)
        dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=folder / "step")
        set_state_dict(new, optimizer, model_state_dict=weights, optim_state_dict=moments)
        same = equal(whole(new.parameters()), list(get_model_state_dict(old, options=FULL).values()))
        step = optimizer.state[new[0][0].weight]["step"].item()
        found[name] = {type(tensor).__name__ for tensor in old_state["model"].values()}, same, step
    return found


def test_checkpoints_of_fsdp1_load_into_fsdp2(measured):
    assert measured["across"][0] == {"groups": ({"ShardedTensor"}, True, 1.0), "mesh": ({"DTensor"}, True, 1.0)}


def clipping_with_fsdp1():
    model, plain = wrapped(), blocks()
    model(batch()).sum().backward()
    mean_gradients(plain)
    expected = nn.utils.clip_grad_norm_(plain.parameters(), 1e9)
    local = nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    return equal([model.clip_grad_norm_(1e9)], [expected]), equal([local], [expected])


def test_fsdp1_clips_right_by_its_own_method_only(measured):
    assert measured["clipping_with_fsdp1"] == [(True, False)] * 2


def no_sync_of_fsdp1():
    model = wrapped()
    with model.no_sync():
        model(batch()).sum().backward()
    return [tuple(parameter.grad.shape) for parameter in model.parameters()]


def test_no_sync_of_fsdp1_leaves_whole_gradients(measured):
    assert measured["no_sync_of_fsdp1"][0] == [(8, 8), (8,), (8, 8), (8,)]


def refusals_of_fsdp1():
    frozen, mixed = blocks(), blocks()
    frozen[0].requires_grad_(False)
    mixed[0].bfloat16()
    flat = FullyShardedDataParallel(blocks(), device_id=CPU)
    names = [name for name, _ in flat.named_parameters()]
    return [message(lambda each=each: FullyShardedDataParallel(each, device_id=CPU)) for each in (frozen, mixed)], names


def test_fsdp1_flattens_and_refuses_mixtures(measured):
    (frozen, mixed), names = measured["refusals_of_fsdp1"][0]
    assert frozen.startswith("ValueError: Must flatten tensors with uniform `requires_grad`")
    assert mixed.startswith("ValueError: Must flatten tensors with uniform dtype")
    assert names == ["_fsdp_wrapped_module._flat_param"]


def safetensors():
    folder, model = shared_folder(), shard(blocks())
    writer = dcp.HuggingFaceStorageWriter(str(folder), save_distributed=True, enable_consolidation=True)
    dcp.save(get_model_state_dict(model), storage_writer=writer)
    state = get_model_state_dict(shard(nn.Sequential(*(nn.Sequential(nn.Linear(8, 8)) for _ in range(2)))))
    dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(str(folder)))
    return sorted(path.name for path in folder.iterdir()), equal(whole(state.values()), whole(model.parameters()))


def test_shards_become_safetensors_and_back(measured):
    names = ["model-00001-of-00001.safetensors", "model.safetensors.index.json", "sharded"]
    assert measured["safetensors"][0] == (names, True)


def test_the_guide_maps_every_argument_and_method_of_fsdp1():
    guide = (ROOT / "references" / "guide-fsdp1.md").read_text("utf-8")
    arguments = list(inspect.signature(FullyShardedDataParallel).parameters)
    methods = [name for name in vars(FullyShardedDataParallel) if not name.startswith("_")]
    fields = [name for name in inspect.signature(MixedPrecision).parameters if name.startswith(("buffer", "keep"))]
    names = [*arguments, *methods, *fields, *(strategy.name for strategy in ShardingStrategy)]
    assert [name for name in names if f"`{name}" not in guide and f"={name}`" not in guide] == []


def test_fully_shard_takes_what_the_guides_say():
    assert set(inspect.signature(fully_shard).parameters) >= {
        "mesh",
        "reshard_after_forward",
        "mp_policy",
        "offload_policy",
        "ignored_params",
    }


MEASUREMENTS = (
    kinds,
    shared_memory,
    optimizer_keys,
    states_of_a_new_optimizer,
    frozen_left_out,
    compiled_names,
    saved_checkpoint,
    loads_that_do_not_fit,
    background,
    whole_state_in,
    optimizer_state_missing,
    across,
    clipping_with_fsdp1,
    no_sync_of_fsdp1,
    refusals_of_fsdp1,
    safetensors,
)

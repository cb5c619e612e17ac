"""What the guides say of precision, memory, checkpointing, compile and profiles is so: measured on two ranks."""

import inspect

import pytest
import torch
import torch._dynamo
import torch.distributed as dist
from torch import nn
from torch._dynamo.utils import counters
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from tests.guides.toys import SIZE, batch, blocks, collectives, equal, mean_gradients, message, shard, whole

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
POLICY = MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=FP32)
CPU = torch.device("cpu")


def dtypes_at(module):
    """The dtypes of a module's input, weight and output, filled by its next forward."""
    found = []
    module.register_forward_hook(
        lambda m, inputs, output: found.extend([inputs[0].dtype, m.weight.dtype, output.dtype])
    )
    return found


def dtypes():
    model = blocks()
    model.register_buffer("table", torch.ones(1))
    shard(model, mp_policy=POLICY)
    inside = dtypes_at(model[0][0])
    optimizer = torch.optim.AdamW(model.parameters())
    output = model(batch().double())
    output.float().sum().backward()
    optimizer.step()
    weight = model[0][0].weight
    kept = [weight, weight.grad, optimizer.state[weight]["exp_avg"], model.state_dict()["0.0.weight"], model.table]
    return inside, output.dtype, {tensor.dtype for tensor in kept}


def test_compute_is_bf16_and_what_is_kept_is_fp32(measured):
    assert measured["dtypes"][0] == ([BF16, BF16, BF16], BF16, {FP32})


class Nested(nn.Linear):
    def forward(self, inputs, *, more):
        self.seen = {**{name: tensor.dtype for name, tensor in inputs.items()}, "more": more.dtype}
        return {"logits": super().forward(inputs["x"])}


def nested_inputs_and_outputs():
    policy = MixedPrecisionPolicy(param_dtype=BF16, output_dtype=FP32)
    model = fully_shard(Nested(SIZE, SIZE), mp_policy=policy)
    output = model({"x": batch(), "ids": torch.arange(3)}, more=batch().double())
    return model.seen, output["logits"].dtype


def test_floating_inputs_are_cast_wherever_they_are(measured):
    assert measured["nested_inputs_and_outputs"][0] == ({"x": BF16, "ids": torch.int64, "more": BF16}, FP32)


def held_over():
    found = {}
    for reduce_dtype in (FP32, None):
        model = shard(blocks(), mp_policy=MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=reduce_dtype))
        model.set_requires_gradient_sync(False)
        model(batch()).sum().backward()
        [group] = model[0]._get_fsdp_state()._fsdp_param_groups
        kept = group.fsdp_params[0]
        gradient = kept.unsharded_accumulated_grad
        found[reduce_dtype] = (kept._unsharded_param.grad if gradient is None else gradient).dtype
    return found


def test_gradients_are_held_over_in_the_reduce_dtype(measured):
    assert measured["held_over"][0] == {FP32: FP32, None: BF16}


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(SIZE), nn.Linear(SIZE, SIZE)

    def forward(self, inputs):
        return self.linear(self.norm(inputs))


def norm_in_fp32():
    found = {}
    named = MixedPrecisionPolicy(param_dtype=FP32, output_dtype=BF16)
    for name, policy in {"named": named, "empty": MixedPrecisionPolicy()}.items():
        model = Normed()
        fully_shard(model.norm, mp_policy=policy)
        found[name] = dtypes_at(model.norm)
        fully_shard(model, mp_policy=POLICY)(batch())
    return found


def test_a_module_of_its_own_policy_stays_in_fp32(measured):
    assert measured["norm_in_fp32"][0] == {"named": [FP32, FP32, BF16], "empty": [BF16, FP32, BF16]}


def policies_that_fail():
    root_only = blocks()
    for block in root_only:
        fully_shard(block)
    fully_shard(root_only, mp_policy=POLICY)
    mixed, frozen = blocks(), blocks()
    mixed[0].bfloat16()
    frozen[0].bfloat16().requires_grad_(False)
    fully_shard(frozen, mp_policy=POLICY)
    return [
        message(lambda: root_only(batch())),
        message(lambda: fully_shard(mixed)(batch())),
        message(lambda: frozen(batch()).sum().backward()),
    ]


def test_a_policy_reaches_its_own_group_and_a_group_has_one_dtype(measured):
    root_only, mixed, frozen = measured["policies_that_fail"][0]
    assert root_only.startswith("RuntimeError: mat1 and mat2 must have the same dtype")
    assert mixed.startswith("AssertionError: FSDP expects uniform original parameter dtype")
    assert frozen == "nothing raised"


def saved_weights():
    """Bytes of 64 x 64 weights that autograd keeps after the forward."""
    found = {}
    for name, policy in {"policy": MixedPrecisionPolicy(param_dtype=BF16), "autocast": MixedPrecisionPolicy()}.items():
        model, saved = shard(blocks(2, 64), reshard_after_forward=True, mp_policy=policy), []
        keep = saved_tensors_hooks(lambda tensor, saved=saved: saved.append(tensor) or tensor, lambda tensor: tensor)
        with keep, torch.autocast("cpu", dtype=BF16, enabled=name == "autocast"):
            output = model(torch.randn(2, 64))
        found[name] = output.dtype, {t.untyped_storage().nbytes() for t in saved if t.shape == (64, 64)}
    return found


def test_autocast_keeps_a_copy_of_the_weights_until_backward(measured):
    assert measured["saved_weights"][0] == {"policy": (BF16, {0}), "autocast": (BF16, {64 * 64 * 2})}


def test_bf16_loses_small_updates():
    assert (torch.ones(1, dtype=BF16) + 1e-3).item() == 1.0
    assert torch.finfo(FP16).max == 65_504


def flat_model():
    return FullyShardedDataParallel(blocks(), use_orig_params=True, device_id=CPU)


def scalers():
    ways = {
        "fsdp2": (lambda: shard(blocks()), torch.amp.GradScaler),
        "plain": (flat_model, torch.amp.GradScaler),
        "sharded": (flat_model, ShardedGradScaler),
    }
    found = {}
    for name, (build, scaler_class) in ways.items():
        model = build()
        optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), scaler_class("cpu", init_scale=4.0)
        scaler.scale(model(batch()).sum()).backward()
        if dist.get_rank() == 1:
            gradient = next(p.grad for p in model.parameters() if p.grad is not None)
            (gradient.to_local() if isinstance(gradient, DTensor) else gradient).view(-1)[0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
        found[name] = scaler.get_scale()
    return found


def test_a_scaler_agrees_on_all_ranks_or_lets_them_diverge(measured):
    assert measured["scalers"] == [
        {"fsdp2": 2.0, "plain": 4.0, "sharded": 2.0},
        {"fsdp2": 2.0, "plain": 2.0, "sharded": 2.0},
    ]


def fsdp1_precision():
    model = blocks()
    model.register_buffer("table", torch.ones(1))
    policy = MixedPrecision(param_dtype=BF16, reduce_dtype=FP32, buffer_dtype=BF16)
    model.append(nn.BatchNorm1d(SIZE))
    settings = {"use_orig_params": True, "device_id": CPU, "auto_wrap_policy": ModuleWrapPolicy({nn.Sequential})}
    model = FullyShardedDataParallel(model, mixed_precision=policy, **settings)
    model(batch()).float().sum().backward()
    units = [type(unit.module).__name__ for unit in FullyShardedDataParallel.fsdp_modules(model)]
    low = MixedPrecision(param_dtype=BF16, keep_low_precision_grads=True)
    kept = FullyShardedDataParallel(blocks(), mixed_precision=low, use_orig_params=True, device_id=CPU)
    kept(batch()).float().sum().backward()
    gradients = [{p.grad.dtype for p in each.parameters() if p.grad is not None} for each in (model, kept)]
    return model.module.table.dtype, units, gradients


def test_fsdp1_casts_buffers_and_wraps_batch_norms(measured):
    units = ["Sequential", "Sequential", "Sequential", "BatchNorm1d"]
    assert measured["fsdp1_precision"][0] == (BF16, units, [{FP32}, {BF16}])


def bytes_of_states():
    model = shard(blocks())
    optimizer = torch.optim.AdamW(model.parameters())
    model(batch()).sum().backward()
    optimizer.step()
    moments = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, DTensor)]
    count = sum(parameter.numel() for parameter in model.parameters())
    tensors = ([*model.parameters()], [p.grad for p in model.parameters()], moments)
    return [sum(t.to_local().numel() * 4 for t in each) / count for each in tensors]


def test_states_take_sixteen_bytes_a_parameter_over_the_ranks(measured):
    assert measured["bytes_of_states"][0] == [4 / 2, 4 / 2, 8 / 2]


def offloaded_accumulation():
    model = shard(blocks(), offload_policy=CPUOffloadPolicy(pin_memory=False))
    for _ in range(2):
        model(batch()).sum().backward()
    return equal(whole(p.grad for p in model.parameters()), [2 * grad for grad in mean_gradients(blocks())])


def test_gradients_accumulate_under_offload(measured):
    assert measured["offloaded_accumulation"][0]


def without_a_cpu_backend():
    group = dist.new_group(backend="cuda:gloo")
    return message(lambda: dist.all_reduce(torch.ones(1), group=group))


def test_offloading_fails_by_these_messages(measured):
    assert measured["without_a_cpu_backend"][0] == "RuntimeError: No backend type associated with device type cpu"
    check = inspect.getsource(FSDPParamGroup._validate_cpu_offload_params)
    assert "FSDP parameters should be materialized on CPU when enabling CPU offloading" in check


def step_in_backward():
    model = shard(blocks())
    before = whole(model.parameters())
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()}

    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    model(batch()).sum().backward()
    return [p.grad for p in model.parameters()], equal(before, whole(model.parameters()))


def test_the_optimizer_may_step_in_the_backward(measured):
    assert measured["step_in_backward"][0] == ([None] * 4, False)


def events(action):
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        action()
    return {event.key: event.count for event in profiler.key_averages() if event.key.startswith("FSDP::")}


def labels():
    model = shard(blocks())
    model(batch()).sum().backward()  # the first step has no post-backward to wait for
    return events(lambda: model(batch()).sum().backward())


def test_a_profile_names_what_fsdp_does(measured):
    assert set(measured["labels"][0]) >= {
        "FSDP::all_gather (0)",
        "FSDP::all_gather_copy_out (1)",
        "FSDP::backward_prefetch for 0",
        "FSDP::post_backward_reduce (0)",
        "FSDP::post_backward_rs_wait (0)",
        "FSDP::post_forward (0)",
        "FSDP::pre_backward (0)",
        "FSDP::pre_forward (0)",
        "FSDP::root_post_backward_callback",
    }


def recomputed():
    found = {}
    for name in ("plain", "checkpointed"):
        model = blocks()
        if name == "checkpointed":
            model = nn.Sequential(*map(checkpoint_wrapper, model))
        shard(model)
        found[name] = {
            key: count
            for key, count in events(lambda model=model: model(batch()).sum().backward()).items()
            if key.startswith(("FSDP::all_gather (", "FSDP::post_backward_reduce"))
        }
    names = next(iter(model.state_dict())), next(iter(dict(model.named_parameters())))
    return found, names


def test_activation_checkpointing_communicates_nothing_more(measured):
    found, names = measured["recomputed"][0]
    gathered = {f"FSDP::all_gather ({i})": 2 for i in range(2)}
    assert found["plain"] == gathered | {f"FSDP::post_backward_reduce ({i})": 1 for i in range(2)}
    assert found["checkpointed"] == found["plain"]
    assert names == ("0.0.weight", "0._checkpoint_wrapped_module.0.weight")


class Counter(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts the calls of each operator."""

    def __init__(self):
        super().__init__()
        self.calls = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = str(function)
        self.calls[name] = self.calls.get(name, 0) + 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("kept", "products"), [([torch.ops.aten.addmm.default], 2), ([], 3)])
def test_selective_checkpointing_recomputes_what_is_not_kept(kept, products):
    def context():
        return create_selective_checkpoint_contexts(kept)

    layers = nn.Sequential(nn.Linear(SIZE, SIZE), nn.GELU(), nn.Linear(SIZE, SIZE))
    inputs = torch.randn(2, SIZE, requires_grad=True)
    with Counter() as counter:
        checkpoint_wrapper(layers, context_fn=context)(inputs).sum().backward()
    # The recomputation stops before the last product, of which no result is needed.
    assert (counter.calls["aten.addmm.default"], counter.calls["aten.gelu.default"]) == (products, 2)


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(SIZE, SIZE)

    def forward(self, inputs):
        return inputs + torch.relu(self.linear(inputs))


def compiled():
    """Graphs made, and the first name in the state dict."""

    def whole_model():
        model = shard(nn.Sequential(*(Own() for _ in range(4))))
        model.compile(backend="eager")
        return model

    def each(block_class, wrap):
        return lambda: shard(nn.Sequential(*(wrap(block_class()) for _ in range(4))))

    def in_place(block, **settings):
        block.compile(backend="eager", **settings)
        return block

    ways = {
        "blocks": each(Own, lambda block: in_place(block, fullgraph=True)),
        "checkpointed": each(Own, lambda block: in_place(checkpoint_wrapper(block), fullgraph=True)),
        "wrapped": each(Own, lambda block: torch.compile(block, backend="eager")),
        "whole model": whole_model,
        "bare containers": each(lambda: nn.Sequential(nn.Linear(SIZE, SIZE), nn.GELU()), in_place),
    }
    found = {}
    for name, build in ways.items():
        torch._dynamo.reset()
        counters.clear()
        model = build()
        model(batch()).sum().backward()
        found[name] = counters["stats"]["unique_graphs"], next(iter(model.state_dict()))
    return found


def test_blocks_share_graphs_and_bare_containers_have_none(measured):
    # One graph for inputs that need a gradient, one for the first block's, which does not.
    assert measured["compiled"][0] == {
        "blocks": (2, "0.linear.weight"),
        "checkpointed": (2, "0.linear.weight"),
        "wrapped": (2, "0._orig_mod.linear.weight"),
        "whole model": (2, "0.linear.weight"),
        "bare containers": (0, "0.0.weight"),
    }


def gathered_before_forward():
    model = fully_shard(nn.Linear(SIZE, SIZE))
    model.unshard(async_op=True)
    with collectives() as found:
        model(batch())
    return found


def test_a_gather_may_be_issued_before_the_forward(measured):
    assert measured["gathered_before_forward"][0] == {}


MEASUREMENTS = (
    dtypes,
    nested_inputs_and_outputs,
    held_over,
    norm_in_fp32,
    policies_that_fail,
    saved_weights,
    scalers,
    fsdp1_precision,
    bytes_of_states,
    offloaded_accumulation,
    without_a_cpu_backend,
    step_in_backward,
    labels,
    recomputed,
    compiled,
    gathered_before_forward,
)

"""What the guides say of `fully_shard` is so: measured on two ranks."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Replicate, Shard

from tests.guides.toys import SIZE, batch, blocks, collectives, equal, mean_gradients, message, shard, whole


def groups():
    found = {}
    for name, settings in {"blocks": {}, "kept": {"reshard_after_forward": False}, "root only": None}.items():
        model = blocks(4)
        model = fully_shard(model) if settings is None else shard_all_but_last(model, settings)
        with collectives() as forward:
            output = model(batch())
        with collectives() as backward:
            output.sum().backward()
        found[name] = forward, backward
    return found


def shard_all_but_last(model, settings):
    for block in model:
        fully_shard(block, **settings)
    return fully_shard(model)


def test_a_call_is_a_group_with_its_own_collectives(measured):
    each_block = ({"all_gather": 4}, {"all_gather": 4, "reduce_scatter": 4})
    kept = ({"all_gather": 4}, {"reduce_scatter": 4})
    root_only = ({"all_gather": 1}, {"reduce_scatter": 1})
    assert measured["groups"][0] == {"blocks": each_block, "kept": kept, "root only": root_only}


def storage_after_forward():
    found = {}
    for reshard in (True, False):
        model, seen = shard(blocks(), reshard_after_forward=reshard), []
        model[0][0].register_forward_hook(lambda module, *_, seen=seen: seen.append(module.weight))
        model(batch()).sum()
        found[reshard] = seen[0].untyped_storage().nbytes(), isinstance(model[0][0].weight, DTensor)
    return found


def test_resharding_frees_the_whole_parameters_and_registers_the_shards(measured):
    kept = SIZE * SIZE * 4  # bytes in fp32
    assert measured["storage_after_forward"][0] == {True: (0, True), False: (kept, False)}


def root_after_forward():
    model = fully_shard(nn.Linear(SIZE, SIZE))
    model(batch()).sum()
    kinds = [isinstance(model.weight, DTensor), isinstance(model.state_dict()["weight"], DTensor)]
    return [*kinds, isinstance(model.weight, DTensor)]


def test_the_root_stays_whole_until_its_state_dict_is_taken(measured):
    assert measured["root_after_forward"][0] == [False, True, True]


def evaluation_without_communication():
    model = shard(blocks())
    counts = []
    with torch.no_grad():
        model(batch())
        for reshard in (False, True):
            model.set_reshard_after_forward(reshard)
            model(batch())
            with collectives() as found:
                model(batch())
            counts.append(found)
    return counts


def test_a_model_kept_whole_evaluates_without_communication(measured):
    assert measured["evaluation_without_communication"][0] == [{}, {"all_gather": 2}]


def accumulation():
    found = {}
    expected = [2 * grad for grad in mean_gradients(blocks())]
    for name, sync in {"unreduced": False, "sharded": True}.items():
        model = shard(blocks())
        model.set_requires_gradient_sync(sync)
        with collectives() as first:
            model(batch()).sum().backward()
        gradients = [parameter.grad is not None for parameter in model.parameters()]
        model.set_requires_gradient_sync(True)
        model(batch()).sum().backward()
        same = equal(whole(p.grad for p in model.parameters()), expected)
        found[name] = first.get("reduce_scatter", 0), any(gradients), same
    return found


def test_accumulated_gradients_are_the_same_reduced_once_or_each_time(measured):
    assert measured["accumulation"][0] == {"unreduced": (0, False, True), "sharded": (2, True, True)}


def clipping():
    model, plain = shard(blocks()), blocks()
    model(batch()).sum().backward()
    mean_gradients(plain)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    expected = nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
    same = equal(whole(p.grad for p in model.parameters()), [p.grad for p in plain.parameters()])
    return isinstance(norm, DTensor), equal([norm.full_tensor()], [expected]), same


def test_clipping_equals_that_of_one_process(measured):
    assert measured["clipping"] == [(True, True, True)] * 2


def frozen():
    model = blocks(3)
    model[0].requires_grad_(False)
    model[1][0].bias.requires_grad_(False)
    shard(model)
    with collectives() as found:
        model(batch()).sum().backward()
    return [p.grad is not None for p in model.parameters()], found["reduce_scatter"]


def test_frozen_parameters_share_groups_and_are_not_reduced(measured):
    assert measured["frozen"][0] == ([False, False, True, False, True, True], 2)


def optimizer_made_before():
    model = blocks()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    shard(model)
    before = whole(model.parameters())
    model(batch()).sum().backward()
    optimizer.step()
    return equal(before, whole(model.parameters()))


def test_an_optimizer_made_before_sharding_changes_nothing(measured):
    assert measured["optimizer_made_before"][0]


def unequal_weights():
    torch.manual_seed(dist.get_rank())
    linear = nn.Linear(SIZE, SIZE)
    own = linear.weight.detach().clone()
    [weight] = whole([fully_shard(linear).weight])
    mine = slice(dist.get_rank() * SIZE // 2, (dist.get_rank() + 1) * SIZE // 2)
    return torch.equal(weight[mine], own[mine]), torch.equal(weight, own)


def test_each_rank_keeps_its_rows_of_its_own_weights(measured):
    assert measured["unequal_weights"] == [(True, False)] * 2


def local_shapes():
    return [tuple(fully_shard(nn.Linear(SIZE, rows)).weight.to_local().shape) for rows in (4, 3, 1)]


def test_uneven_rows_leave_small_and_empty_shards(measured):
    assert measured["local_shapes"] == [[(2, 8), (2, 8), (1, 8)], [(2, 8), (1, 8), (0, 8)]]


def drawn_on_a_cpu_mesh():
    with torch.device("meta"):
        linear = nn.Linear(SIZE, SIZE)
    fully_shard(linear).to_empty(device="cpu")
    torch.manual_seed(0)
    linear.reset_parameters()
    top, bottom = linear.weight.full_tensor().chunk(2)
    return torch.equal(top, bottom)


def test_alike_seeds_give_alike_rows_on_a_cpu_mesh(measured):
    assert measured["drawn_on_a_cpu_mesh"][0]


def meta():
    with torch.device("meta"):
        model = blocks()
    shard(model)
    refused = message(lambda: model(batch()))
    before = list(model.parameters())
    model.to_empty(device="cpu")
    return refused, all(map(lambda a, b: a is b, before, model.parameters()))


def test_meta_parameters_are_refused_until_to_empty(measured):
    refused, same = measured["meta"][0]
    assert refused.startswith("RuntimeError: FSDP parameters should be materialized from meta device")
    assert same


def gradient_of_ignored():
    model = blocks()
    ignored = model[0][0].bias
    fully_shard(model, ignored_params={ignored})
    model(batch()).sum().backward()
    expected = mean_gradients(blocks())[1]
    return isinstance(model[0][0].bias, DTensor), torch.allclose(ignored.grad, expected)


def test_ignored_parameters_stay_whole_and_unreduced(measured):
    assert measured["gradient_of_ignored"] == [(False, False)] * 2


def hook_after_accumulation():
    model, seen = shard(blocks()), []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: seen.append(tuple(p.grad.to_local().shape)))
    model(batch()).sum().backward()
    return seen


def test_hooks_on_accumulated_gradients_get_shards(measured):
    assert measured["hook_after_accumulation"][0] == [(4, 8), (4,), (4, 8), (4,)]


def hybrid():
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    model = shard(blocks(), mesh=mesh)
    model.set_requires_all_reduce(False)
    with collectives() as without:
        model(batch()).sum().backward()
    model.set_requires_all_reduce(True)
    with collectives() as with_it:
        model(batch()).sum().backward()
    return model[0][0].weight.placements, without.get("all_reduce", 0), with_it["all_reduce"]


def test_hybrid_sharding_all_reduces_on_demand(measured):
    assert measured["hybrid"][0] == ((Replicate(), Shard(0)), 0, 2)


def list_of_modules():
    model = blocks(3)
    fully_shard([model[1], model[2]])
    fully_shard(model)
    with collectives() as found:
        model(batch())
    return found


def test_a_list_of_modules_is_one_group(measured):
    assert measured["list_of_modules"][0] == {"all_gather": 2}


def prefetch():
    model = shard(blocks(4))
    order = list(model)
    for i, block in enumerate(order):
        block.set_modules_to_forward_prefetch(order[i + 1 : i + 3])
        block.set_modules_to_backward_prefetch(order[max(i - 2, 0) : i][::-1])
    model(batch()).sum().backward()
    return equal(whole(p.grad for p in model.parameters()), mean_gradients(blocks(4)))


def test_explicit_prefetch_changes_no_gradient(measured):
    assert measured["prefetch"][0]


class Scalar(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))


class Encoder(nn.Linear):
    def encode(self, inputs):
        return nn.functional.linear(inputs, self.weight, self.bias)


def tied():
    first, last = nn.Linear(SIZE, SIZE, bias=False), nn.Linear(SIZE, SIZE, bias=False)
    last.weight = first.weight
    return nn.Sequential(first, nn.Linear(SIZE, SIZE), last)


def refusals():
    model = tied()
    encoder = fully_shard(Encoder(SIZE, SIZE))
    before = message(lambda: encoder.encode(batch()))
    register_fsdp_forward_method(encoder, "encode")
    shared = fully_shard(tied())
    shared(batch()).sum().backward()
    half, whole_model = blocks(), blocks()
    shard(half).forward(batch())
    return {
        "list": message(lambda: fully_shard(nn.ModuleList([nn.Linear(2, 2)]))),
        "scalar": message(lambda: fully_shard(Scalar())),
        "copy": message(lambda: copy.deepcopy(shard(blocks()))),
        "tied apart": message(lambda: shard(model)(batch())),
        "tied in the root": shared[0].weight is shared[2].weight,
        "other method": before,
        "registered": message(lambda: encoder.encode(batch())),
        "forward": message(lambda: fully_shard(whole_model).forward(batch())),
        "forward, then call": message(lambda: half(batch())),
        "no divisor": message(lambda: shard(blocks(), reshard_after_forward=3)),
    }


def test_what_is_refused_says_so(measured):
    mixed = "RuntimeError: aten.addmm.default got mixed torch.Tensor and DTensor, need to convert"
    expected = {
        "list": "ValueError: fully_shard does not support containers that do not implement forward",
        "scalar": "ValueError: fully_shard doesn't support scalar parameters. Change scale to a 1D tensor",
        "copy": "AssertionError: FSDP does not support deepcopy.",
        "tied apart": "ValueError: Parameter '2.weight' is shared with a parameter already managed by another",
        "other method": mixed,
        "registered": "nothing raised",
        "forward": mixed,
        "forward, then call": "RuntimeError: FSDP state has already been lazily initialized for 0",
        "no divisor": "ValueError: If passing reshard_after_forward as an int, it should be a factor of 2, not 3",
    }
    found = measured["refusals"][0]
    assert found.pop("tied in the root")
    assert {name: text[: len(expected[name])] for name, text in found.items()} == expected


MEASUREMENTS = (
    groups,
    storage_after_forward,
    root_after_forward,
    evaluation_without_communication,
    accumulation,
    clipping,
    frozen,
    optimizer_made_before,
    unequal_weights,
    local_shapes,
    drawn_on_a_cpu_mesh,
    meta,
    gradient_of_ignored,
    hook_after_accumulation,
    hybrid,
    list_of_modules,
    prefetch,
    refusals,
)

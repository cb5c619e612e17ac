"""What the guides say of data, uneven inputs, evaluation and generation is so: measured on two ranks."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join, Joinable
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.integrations.fsdp import is_fsdp_managed_module

from tests.guides.blocks import blocks as code_blocks
from tests.guides.toys import SIZE, batch, blocks, shard


def join():
    model, steps = DistributedDataParallel(blocks()), 0
    with Join([model]):
        for _ in range(2 + dist.get_rank()):
            model(batch()).sum().backward()
            steps += 1
    try:
        with Join([model], throw_on_early_termination=True):
            for _ in range(1 + 2 * dist.get_rank()):
                model(batch()).sum().backward()
    except RuntimeError as error:
        return steps, str(error)
    return steps, ""


def test_join_lets_ranks_end_at_different_times_or_stops_all(measured):
    assert [steps for steps, _ in measured["join"]] == [2, 3]
    assert [said for _, said in measured["join"]] == [
        "Rank 0 exhausted all inputs.",
        "Detected at least one rank that exhausted inputs. Throwing across all ranks.",
    ]


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # by the import itself
def test_fsdp_is_not_joinable():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    joinable = (DistributedDataParallel, ZeroRedundancyOptimizer)
    assert all(issubclass(each, Joinable) for each in joinable)
    assert not any(issubclass(each, Joinable) for each in (FullyShardedDataParallel, FSDPModule))


def join_fsdp():
    try:
        Join([fully_shard(nn.Linear(2, 2))])
    except AttributeError as error:
        return str(error)
    return ""


def test_join_refuses_fsdp(measured):
    assert measured["join_fsdp"][0] == "'FSDPLinear' object has no attribute 'join_hook'"


def test_the_sampler_repeats_samples_unless_it_drops_them():
    parts = [list(DistributedSampler(range(5), 2, rank, shuffle=False)) for rank in (0, 1)]
    assert parts == [[0, 2, 4], [1, 3, 0]]
    assert [len(DistributedSampler(range(5), 2, rank, drop_last=True)) for rank in (0, 1)] == [2, 2]


def test_without_set_epoch_every_epoch_has_the_same_order():
    sampler = DistributedSampler(range(64), 2, 0)
    first, second = list(sampler), list(sampler)
    sampler.set_epoch(1)
    assert first == second != list(sampler)


def uneven():
    """Rank 1 has one batch more; each step's loss is divided by the samples of all ranks."""
    model, rank = shard(blocks()), dist.get_rank()
    mine, steps = iter([sample(rank, number) for number in range(2 + rank)]), 0
    while True:
        one = next(mine, None)
        count = torch.tensor(0 if one is None else len(one))
        dist.all_reduce(count)
        if count == 0:
            break
        loss = model(torch.zeros(1, SIZE) if one is None else one).sum() * (one is not None)
        (loss / count * dist.get_world_size()).backward()
        steps += 1
    plain = blocks()
    for number in range(3):
        together = torch.cat([sample(rank, number) for rank in (0, 1) if number < 2 + rank])
        (plain(together).sum() / len(together)).backward()
    return steps, torch.allclose(model[0][0].weight.grad.full_tensor(), plain[0][0].weight.grad, atol=1e-6)


def sample(rank, number):
    return torch.randn(3, SIZE, generator=torch.Generator().manual_seed(10 * rank + number))


def test_ranks_without_data_take_part_and_gradients_are_those_of_all_samples(measured):
    assert measured["uneven"] == [(3, True), (3, True)]


def after_evaluation():
    model = fully_shard(blocks())
    kinds = []
    with torch.no_grad():
        model(batch())
    kinds.append(isinstance(model[0][0].weight, DTensor))
    model.reshard()
    kinds.append(isinstance(model[0][0].weight, DTensor))
    scope = {}
    exec(next(block.text for block in code_blocks("python") if "def mean_loss" in block.text), scope)
    labels = torch.tensor([dist.get_rank(), 1])
    mean = scope["mean_loss"](model, [(batch(), labels)])
    wanted = sum(
        nn.functional.cross_entropy(blocks()(batch(rank)), torch.tensor([rank, 1]), reduction="sum").item()
        for rank in (0, 1)
    )
    return *kinds, mean == pytest.approx(wanted / 4, rel=1e-5), isinstance(model[0][0].weight, DTensor)


def test_the_roots_parameters_stay_gathered_after_evaluation_until_reshard(measured):
    assert measured["after_evaluation"] == [(False, True, True, True)] * 2


def penalty():
    model, plain, scope = shard(blocks()), blocks(), {}
    exec(next(block.text for block in code_blocks("python") if "def penalty" in block.text), scope)
    scope["penalty"](model).backward()
    sum(p.pow(2).sum() for p in plain.parameters()).backward()
    return torch.allclose(model[0][0].weight.grad.full_tensor(), plain[0][0].weight.grad)


def test_a_penalty_on_sharded_parameters_has_the_right_gradient(measured):
    assert measured["penalty"] == [True, True]


def generate():
    """Ranks ask for different lengths; a part alone is not gathered."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=32, num_hidden_layers=1, eos_token_id=None, **sizes)).eval()
    fully_shard(model.model.layers[0])
    fully_shard(model)
    prompt = torch.tensor([[5, 6, 7]])
    lengths = [model.generate(prompt, max_new_tokens=2 + 2 * dist.get_rank(), do_sample=False).shape[1]]
    model.reshard()
    try:
        model.model.embed_tokens(prompt)
    except RuntimeError as error:
        return lengths[0], is_fsdp_managed_module(model), str(error)
    return lengths[0], is_fsdp_managed_module(model), ""


def test_generate_waits_for_ranks_that_need_more_tokens(measured):
    (first, managed, said), (second, _, _) = measured["generate"]
    assert (first, second, managed) == (5, 7, True)
    assert "got mixed torch.Tensor and DTensor" in said


MEASUREMENTS = (join, join_fsdp, uneven, after_evaluation, penalty, generate)

"""Every name of torch that the skill mentions is in the installed one, or is listed here with its release."""

import re

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint import state_dict as dcp_state
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel
from transformers import GenerationMixin, PreTrainedModel

from tests.guides.blocks import DOCUMENTS, ROOT
from tests.guides.names import mentioned, resolve, used

SOURCES = (
    *DOCUMENTS,
    *sorted(p for p in (ROOT / "scripts").glob("*") if p.is_file()),
    *sorted((ROOT / "assets").glob("*")),
)

_CALLED = re.compile(r"`(?:model|module|block|optimizer)\.(\w+)\(")
_SWITCH = re.compile(r"`(?:\w+\.)?((?:set|get|reset|register)_\w+)")
OWNERS = (FSDPModule, FullyShardedDataParallel, DistributedDataParallel, DeviceMesh, GenerationMixin, PreTrainedModel)
OWNERS += (nn.Module, torch.optim.Optimizer, torch, dist, dcp, dcp_state)
"""Where the guides' short names come from; a few are functions of other modules."""
OTHERS = {
    "register_fsdp_forward_method": torch.distributed.fsdp,
    "register_post_accumulate_grad_hook": torch.Tensor,
    "set_device": torch.cuda,
}

ELSEWHERE: dict[str, str] = {}
"""A name that torch 2.13 does not have -> which releases have it, and why it is mentioned."""


def names_of(path):
    text = path.read_text("utf-8")
    return mentioned(text) | (used(text) if path.suffix == ".py" else set())


def leads_somewhere(name):
    try:
        resolve(name)
    except AttributeError:
        return False
    return True


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_names_of_torch_lead_somewhere(path):
    assert [name for name in sorted(names_of(path) - set(ELSEWHERE)) if not leads_somewhere(name)] == []


def test_what_is_listed_is_mentioned_and_absent():
    mentioned_somewhere = set().union(*map(names_of, SOURCES))
    assert [name for name in ELSEWHERE if name not in mentioned_somewhere or leads_somewhere(name)] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_methods_named_in_prose_exist(path):
    text = path.read_text("utf-8")
    names = {*_CALLED.findall(text), *_SWITCH.findall(text)}
    owners = {name: (OTHERS[name],) if name in OTHERS else OWNERS for name in names}
    assert sorted(name for name, places in owners.items() if not any(hasattr(place, name) for place in places)) == []


def test_aliases_are_followed():
    source = (
        "import torch.distributed as dist\nfrom torch.distributed import fsdp\ndist.is_lost()\nfsdp.fully_shard(x.y)\n"
    )
    assert used(source) == {
        "torch.distributed",
        "torch.distributed.fsdp",
        "torch.distributed.is_lost",
        "torch.distributed.fsdp.fully_shard",
    }


def test_urls_are_no_names():
    assert mentioned("https://docs.pytorch.org/x/torch.nope.html `torch.nn.Linear`, torch.cuda.") == {
        "torch.nn.Linear",
        "torch.cuda",
    }

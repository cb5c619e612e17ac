"""Every name of torch that the skill mentions exists from torch 2.6 to 2.13, or the text says since when."""

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
from torch.utils.data import DistributedSampler
from transformers import GenerationMixin, PreTrainedModel

from skill_builder.history import load_history
from tests.guides.blocks import DOCUMENTS, PROSE, ROOT
from tests.guides.names import arguments, mentioned, resolve, used

SOURCES = (
    *DOCUMENTS,
    *sorted(p for p in (ROOT / "scripts").glob("*") if p.is_file()),
    *sorted((ROOT / "assets").glob("*")),
)
SINCE, UNTIL = (2, 6), (2, 13)
"""The releases that the skill is for."""

_CALLED = re.compile(r"`(?:model|module|block|optimizer)\.(\w+)\(")
_SWITCH = re.compile(r"`(?:\w+\.)?((?:set|get|reset|register)_\w+)")
_WORD = re.compile(r"`(?:\w+\.)?([A-Za-z_]\w+)(?![\w=])")
_KEYWORD = re.compile(r"\b([a-z]\w+)=")
_PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^(?=#{2,3} )", re.MULTILINE)
OWNERS = (FSDPModule, FullyShardedDataParallel, DistributedDataParallel, DeviceMesh, GenerationMixin, PreTrainedModel)
OWNERS += (nn.Module, torch.optim.Optimizer, torch, dist, dcp, dcp_state)
"""Where the guides' short names come from; a few are functions of other modules."""
OTHERS = {
    "register_fsdp_forward_method": torch.distributed.fsdp,
    "register_post_accumulate_grad_hook": torch.Tensor,
    "set_device": torch.cuda,
    "set_epoch": DistributedSampler,
}
PLACES = (
    "torch.distributed.fsdp.FSDPModule",
    "torch.distributed.fsdp",
    "torch.distributed.device_mesh.DeviceMesh",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.checkpoint",
    "torch.distributed",
    "torch.nn.utils",
)
"""Where a short name of the text is looked up in the history of releases."""
TAKERS = (
    "torch.distributed.fsdp.fully_shard",
    "torch.distributed.fsdp.MixedPrecisionPolicy",
    "torch.distributed.fsdp.CPUOffloadPolicy",
    "torch.distributed.checkpoint.state_dict.StateDictOptions",
    "torch.distributed.checkpoint.save",
    "torch.distributed.checkpoint.load",
    "torch.distributed.checkpoint.async_save",
    "torch.distributed.checkpoint.HuggingFaceStorageWriter",
    "torch.distributed.init_process_group",
    "torch.distributed.new_group",
    "torch.distributed.broadcast",
    "torch.distributed.monitored_barrier",
    "torch.distributed.tensor.parallel.parallelize_module",
)
"""Whose parameters a `name=` of the text may be."""


@pytest.fixture(scope="module")
def history():
    return load_history()


def names_of(path):
    text = path.read_text("utf-8")
    return mentioned(text) | (used(text) if path.suffix == ".py" else set())


def leads_somewhere(name):
    try:
        resolve(name)
    except AttributeError:
        return False
    return True


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # by importing torch.distributed.optim
@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_names_of_torch_lead_somewhere(path, history):
    """In the installed torch; the linter also names what other releases have."""
    elsewhere = history.object if path.name == "lint_fsdp.py" else lambda name: None
    assert [name for name in sorted(names_of(path)) if not leads_somewhere(name) and not elsewhere(name)] == []


@pytest.mark.parametrize("path", PROSE, ids=lambda path: path.name)
def test_methods_named_in_prose_exist(path):
    text = path.read_text("utf-8")
    names = {*_CALLED.findall(text), *_SWITCH.findall(text)}
    owners = {name: (OTHERS[name],) if name in OTHERS else OWNERS for name in names}
    assert sorted(name for name, places in owners.items() if not any(hasattr(place, name) for place in places)) == []


@pytest.mark.parametrize("path", PROSE, ids=lambda path: path.name)
def test_a_section_says_since_when_what_it_names_exists(path, history):
    sections = _HEADING.split(path.read_text("utf-8"))
    assert [unsaid for section in sections for unsaid in unsaid_releases(section, history)] == []


def test_what_came_later_is_noticed(history):
    later = [
        "## A\nCall `model.reset_iter_state()`.",
        "## A\n`fully_shard(model, ignored_params=set())`, or `new_group(sort_ranks=False)`",
        "## A\n```python\nimport torch.distributed.checkpoint as dcp\ndcp.HuggingFaceStorageWriter('x')\n```\n",
        "## A\n```python\nfrom torch.distributed.fsdp import fully_shard\nfully_shard(m, dp_mesh_dims=d)\n```\n",
    ]
    assert [sorted(unsaid_releases(section, history)) for section in later] == [
        ["reset_iter_state 2.13"],
        ["ignored_params= 2.7", "sort_ranks= 2.12"],
        ["torch.distributed.checkpoint.HuggingFaceStorageWriter 2.8"],
        ["dp_mesh_dims= 2.12"],
    ]
    assert unsaid_releases(later[0] + " (2.13)", history) == []


def unsaid_releases(section, history):
    """What a section names that not all releases have, with the release that it should speak of."""
    code = "\n".join(_PYTHON.findall(section))
    prose = _PYTHON.sub("", section)
    releases = {name: late([name], history) for name in mentioned(prose) | used(code)}
    for name in {*_WORD.findall(prose)}:
        releases[name] = late([f"{place}.{name}" for place in PLACES], history)
    for name in {*_KEYWORD.findall(prose), *arguments(code)}:
        releases[f"{name}="] = late_argument(name, history)
    said = re.findall(r"\b2\.\d+\b", section)
    return [f"{name} {release}" for name, release in sorted(releases.items()) if release and release not in said]


def late(names, history):
    """The release that first, or last, has one of the names, unless one of them is always there."""
    found = [found for found in map(history.object, names) if found]
    return first_or_last([(each.since, each.until) for each in found])


def late_argument(name, history):
    takers = [history.object(taker).parameters for taker in TAKERS]
    return first_or_last([(each[name].since, each[name].until) for each in takers if name in each])


def first_or_last(spans):
    outside = [
        since if number(since, SINCE) > SINCE else until for since, until in spans if not throughout(since, until)
    ]
    return outside[0] if outside and len(outside) == len(spans) else None


def throughout(since, until):
    return number(since, SINCE) <= SINCE and number(until, UNTIL) >= UNTIL


def number(release, default):
    return tuple(map(int, release.split("."))) if release else default


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

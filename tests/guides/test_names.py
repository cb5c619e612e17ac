"""Every name of torch that the skill mentions is in the installed one, or is listed here with its release."""

import pytest

from tests.guides.blocks import DOCUMENTS, ROOT
from tests.guides.names import mentioned, resolve, used

SOURCES = (
    *DOCUMENTS,
    *sorted(p for p in (ROOT / "scripts").glob("*") if p.is_file()),
    *sorted((ROOT / "assets").glob("*")),
)

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

"""Every name of torch that a script uses is there in all releases that it claims, from 2.6 on."""

import pytest

from skill_builder.history import load_history, release_number
from skill_builder.skill.assemble import sources
from tests.guides.names import used

SCRIPTS = sorted((sources() / "scripts").glob("*.py"))
HISTORY = load_history()
CLAIMED = [release for release in HISTORY.releases if release_number("2.6") <= release_number(release)]


def lacking(source):
    return {(name, release) for name in used(source) for release in CLAIMED if HISTORY.missing_in(name, release)}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_uses_what_every_release_has(path):
    assert lacking(path.read_text("utf-8")) == set()


def test_what_a_release_lacks_is_found():
    source = "from torch.distributed.fsdp import share_comm_ctx\nshare_comm_ctx([])\n"
    assert ("torch.distributed.fsdp.share_comm_ctx", "2.9") in lacking(source)
    assert lacking("import torch\ntorch.distributed.barrier()\n") == set()

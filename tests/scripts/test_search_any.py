"""Whatever is asked, searching ends with one of its three statuses, and prints no more than it may."""

import contextlib
import io
import json

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from skill_builder.build import BuildRequest, build_skill
from skill_builder.index.entries import load_search
from skill_builder.skill.assemble import sources
from tests.odd_site import QUICK, ROOMY, Site, serving

FUZZ = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
WORDS = [
    "fully_shard",
    "how do I",
    "hang",
    "NCCL",
    "torch.distributed",
    "._",
    "FSDP2",
    "_",
    ".",
    "0x1f",
    "rank0]:",
    "\n",
    "-",
]
QUERIES = st.lists(st.sampled_from(WORDS) | st.text(max_size=12), max_size=12).map(" ".join)


@pytest.fixture(scope="module")
def search():
    return load_search(sources() / "scripts")


@pytest.fixture(scope="module")
def skill(tmp_path_factory):
    out = tmp_path_factory.mktemp("skill") / "pytorch-fsdp"
    site = Site.of(fsdp=["torch.distributed.fsdp.fully_shard"], distributed=["torch.distributed.barrier"])
    with serving(site) as url:
        build_skill(BuildRequest(ROOMY, out, source="site", url=url, manners=QUICK))
    return out


@FUZZ
@given(query=QUERIES, budget=st.integers(1, 4000), limit=st.integers(1, 20))
@example(query="\ud800", budget=1, limit=1)
@example(query="a\x00b\x1e\x1f", budget=1500, limit=12)
def test_any_query_is_answered_within_its_budget(search, skill, query, budget, limit):
    if not query.strip():
        return
    index = search.Index(str(skill))
    results = search.search(index, query, budget=budget, limit=limit)
    assert len(results) <= limit
    assert sum(search.tokens(result.text) for result in results) <= budget
    assert json.loads(search.as_json(index, query, results))["query"] == query


@FUZZ
@given(
    st.lists(
        st.sampled_from(["--budget", "--limit", "--category", "--json", "--", "3", "fsdp2", "-x"]) | QUERIES, max_size=6
    )
)
def test_any_command_line_has_a_status(search, skill, arguments):
    if "-" in arguments:
        return
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert search.main(arguments, skill=str(skill)) in (0, 1, 2)


@FUZZ
@given(st.data())
def test_a_damaged_index_is_said_to_be_damaged_or_is_read(search, skill, tmp_path_factory, data):
    copy = tmp_path_factory.mktemp("copy")
    index = (skill / "references" / "index.json").read_bytes()
    at = data.draw(st.integers(0, len(index) - 1))
    (copy / "references").mkdir()
    (copy / "references" / "index.json").write_bytes(index[:at] + data.draw(st.binary(max_size=3)) + index[at + 1 :])
    try:
        damaged = search.Index(str(copy))
        search.rank(damaged, "fully_shard hang")
    except search.BrokenSkill:
        pass

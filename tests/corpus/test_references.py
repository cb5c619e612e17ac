"""Sections become files: within the budget, with contents by line, and with links that lead somewhere."""

from dataclasses import replace

import pytest

from skill_builder.corpus.references import official_anchor, write_references
from skill_builder.errors import OverBudget
from skill_builder.records import CodeLink, Section
from skill_builder.scope import load_scope

DOCS = "https://docs.pytorch.org/docs/stable/"
SCOPE = load_scope()


def heading(page, title, markdown="Text.", *, category, parent="", depth=0, anchor=None):
    url = f"{DOCS}{page}.html#{anchor or official_anchor(title)}"
    return Section(url, title, "heading", "", parent, depth, markdown, category)


def function(page, name, markdown="```python\ndef f(): ...\n```", *, category, parent="", depth=1):
    return Section(f"{DOCS}{page}.html#{name}", name, "function", name, parent, depth, markdown, category)


FSDP2 = heading("distributed.fsdp.fully_shard", "FSDP2", category="fsdp2")
SHARD = function("distributed.fsdp.fully_shard", "torch.fully_shard", category="fsdp2", parent=FSDP2.url)
MESH_PAGE = heading("distributed", "Distributed", category="process-groups")
MESH = heading("distributed", "DeviceMesh", category="device-mesh", parent=MESH_PAGE.url, depth=1)


def test_a_file_opens_with_what_is_in_it_where_it_is_from_and_its_contents():
    text = write_references([FSDP2, SHARD], SCOPE, "2.13").files["docs-fsdp2.md"]
    assert text == (
        "# FSDP2 (fully_shard)\n\n"
        "In this file: fully_shard, FSDPModule and its methods, offload policies, FSDP2 against FSDP1.\n\n"
        "From the official documentation of PyTorch 2.13, https://docs.pytorch.org/. A page's heading links to\n"
        "its source; a section's is the same URL with `#` and the object's full name, or the heading's words joined\n"
        "by hyphens. © PyTorch Contributors, BSD-3-Clause: `assets/pytorch-license.txt`.\n\n"
        "Contents, by line:\n\n"
        "- 14: FSDP2\n"
        " - 18: fully_shard\n\n"
        f"## [FSDP2]({DOCS}distributed.fsdp.fully_shard.html#fsdp2)\n\n"
        "Text.\n\n"
        "### torch.fully_shard\n\n"
        "```python\ndef f(): ...\n```\n\n"
    )


def test_each_section_stands_where_it_is_said_to_stand():
    references = write_references([FSDP2, SHARD, MESH_PAGE, MESH], SCOPE, "2.13")
    for placed in references.placed:
        lines = references.files[placed.file].split("\n")[placed.lines[0] - 1 : placed.lines[1]]
        assert placed.section.title in lines[0]
        assert placed.section.markdown in "\n".join(lines)


def test_a_part_of_a_page_is_under_the_pages_heading_in_another_file():
    text = write_references([MESH_PAGE, MESH], SCOPE, "2.13").files["docs-device-mesh.md"]
    assert f"\n## [Distributed]({DOCS}distributed.html)\n\n### DeviceMesh\n\nText.\n" in text


def test_links_to_sections_of_the_skill_are_reference_links():
    markdown = (
        f"See [`fully_shard()`]({SHARD.url}), [the mesh]({MESH.url}) and [`fully_shard()`]({SHARD.url})(x).\n\n"
        f"```python\n# [`fully_shard()`]({SHARD.url})\n```\n\n[out](https://a.b/c)"
    )
    text = write_references([replace(FSDP2, markdown=markdown), SHARD, MESH_PAGE, MESH], SCOPE, "2.13").files[
        "docs-fsdp2.md"
    ]
    assert "See [`fully_shard()`], [the mesh] and [`fully_shard()`][](x)." in text
    assert f"# [`fully_shard()`]({SHARD.url})" in text
    assert "[out](https://a.b/c)" in text
    assert text.endswith("\n[`fully_shard()`]: #torchfully_shard\n[the mesh]: docs-device-mesh.md#devicemesh\n")


def test_a_link_to_itself_is_text_and_one_to_the_old_host_is_the_same_page():
    markdown = f"[`torch.fully_shard`]({SHARD.url}) and [page](https://pytorch.org/docs/main/distributed.html)"
    text = write_references([FSDP2, replace(SHARD, markdown=markdown), MESH_PAGE], SCOPE, "2.13").files["docs-fsdp2.md"]
    assert "\n`torch.fully_shard` and [page]\n" in text
    assert "[page]: docs-process-groups.md#distributed" in text


def test_two_targets_of_one_label_both_lead_where_they_should():
    markdown = f"[it]({SHARD.url}) or [it]({MESH.url})"
    text = write_references([replace(FSDP2, markdown=markdown), SHARD, MESH_PAGE, MESH], SCOPE, "2.13").files[
        "docs-fsdp2.md"
    ]
    assert "[it] or [it](docs-device-mesh.md#devicemesh)" in text


def test_headings_of_one_name_get_different_fragments():
    pages = [heading(page, "Logging", "Text.", category="debugging") for page in ("a", "b")]
    link = heading("c", "Link", f"[a]({pages[0].url}) [b]({pages[1].url})", category="debugging")
    text = write_references([*pages, link], SCOPE, "2.13").files["docs-debugging.md"]
    assert text.endswith("[a]: #logging\n[b]: #logging-1\n")


def test_where_the_code_is_stands_under_the_section():
    shard = replace(SHARD, code=CodeLink("torch/a.py", 7, "v2.13.0"))
    text = write_references([FSDP2, shard], SCOPE, "2.13").files["docs-fsdp2.md"]
    assert "```\n\nCode: `torch/a.py:7`\n" in text


def test_the_environment_is_written_as_the_scanner_lets_it_pass():
    markdown = (
        'Set `os.environ["RANK"]`.\n\n```python\nimport os\nos.environ["A"] = "1"\nos.environ.get("B")\n```\n\n'
        "```python\n>>> import os\n>>> dict(os.environ)\n```"
    )
    references = write_references([replace(FSDP2, markdown=markdown)], SCOPE, "2.13")
    text = references.files["docs-fsdp2.md"]
    assert "\nIn this file `environ` is the one of the `os` module: `from os import environ`.\n" in text
    assert (
        'Set `environ["RANK"]`.\n\n```python\nimport os\nfrom os import environ\nenviron["A"] = "1"\n'
        'os.environ.get("B")\n```\n\n```python\n>>> import os\n>>> from os import environ\n>>> dict(environ)\n```'
    ) in text
    assert references.reworded == (FSDP2.url,)


def test_an_address_with_a_port_is_written_with_a_word():
    text = write_references([replace(FSDP2, markdown="`tcp://10.1.1.20:23456`")], SCOPE, "2.13").files["docs-fsdp2.md"]
    assert "`tcp://HOST:23456`" in text
    assert "\nIn this file `HOST` in an address with a port stands for the example's IP address.\n" in text


def small(**limits):
    return replace(SCOPE, budget=replace(SCOPE.budget, **limits))


def test_what_does_not_fit_is_left_out_the_least_wanted_first():
    rpc = heading("rpc", "RPC", "r" * 3000, category="rpc")
    agent = heading("elastic/agent", "Agent", "a" * 3000, category="elastic-internals")
    inside = function("elastic/agent", "agent.run", "b" * 3000, category="elastic-internals", parent=agent.url)
    references = write_references([FSDP2, SHARD, agent, inside, rpc], small(docs=6), "2.13")
    assert references.left_out == (rpc, agent, inside)
    assert list(references.files) == ["docs-fsdp2.md"]
    assert sum(len(text.encode()) for text in references.files.values()) <= 6 * 1024
    again = write_references([FSDP2, SHARD, agent, inside, rpc], small(docs=9), "2.13")
    assert again.left_out == (rpc,)


def test_a_section_is_left_out_with_all_that_stands_in_it():
    optimizer = function(
        "distributed.optim", "torch.distributed.optim.DistributedOptimizer", "o" * 3000, category="optimizers", depth=0
    )
    method = replace(
        optimizer, url=f"{optimizer.url}.step", name="x.step", title="x.step", parent=optimizer.url, depth=1
    )
    references = write_references([FSDP2, optimizer, method], small(docs=3), "2.13")
    assert references.left_out == (optimizer, method)


def test_too_much_that_may_not_be_left_out_is_an_error():
    with pytest.raises(OverBudget, match=r"references/docs-\*.md: \d+ KiB, and the budget has 3; name more pages"):
        write_references([replace(FSDP2, markdown="x" * 4000)], small(docs=3), "2.13")


def test_a_file_that_is_too_large_is_an_error():
    with pytest.raises(OverBudget, match=r"references/docs-fsdp2\.md: 4 KiB, and a file may have 3"):
        write_references([replace(FSDP2, markdown="x" * 4000)], small(file=3), "2.13")

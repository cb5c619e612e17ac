"""The site that the tests render has what pages of docs.pytorch.org have."""

from urllib.request import urlopen

import pytest
import sphobjinv
from bs4 import BeautifulSoup

PAGES = [
    "docs/stable/distributed.html",
    "docs/stable/distributed.fsdp.fully_shard.html",
    "docs/stable/elastic/run.html",
    "docs/stable/generated/torch.nn.Linear.html",
    "docs/stable/generated/torch.nn.utils.clip_grad_norm_.html",
    "docs/stable/notes/fsdp.html",
    "tutorials/intermediate/FSDP_tutorial.html",
]


def article(site_root, page):
    """The part of a page that is its own."""
    return BeautifulSoup((site_root / page).read_text(), "lxml").select_one("article.bd-article")


@pytest.mark.parametrize("page", PAGES)
def test_pages_have_one_title_in_an_article(site_root, page):
    assert len(article(site_root, page).select("h1")) == 1


def test_pages_are_served_as_they_are(site_root, site_url):
    for page in [*PAGES, "docs/stable/objects.inv"]:
        with urlopen(site_url + page) as answer:
            assert answer.read() == (site_root / page).read_bytes()


def test_inventory_lists_what_the_pages_document(site_root):
    inventory = sphobjinv.Inventory(site_root / "docs/stable/objects.inv")
    found = {item.name: item.uri_expanded for item in inventory.objects if item.domain == "py"}
    assert inventory.project == "PyTorch"
    for name, page in {
        "torch.distributed.fsdp.FSDPModule.unshard": "distributed.fsdp.fully_shard.html",
        "torch.distributed.device_mesh.DeviceMesh.get_group": "distributed.html",
        "torch.nn.utils.clip_grad_norm_": "generated/torch.nn.utils.clip_grad_norm_.html",
        "torch.nn.Linear": "generated/torch.nn.Linear.html",
    }.items():
        assert found[name] == f"{page}#{name}"


@pytest.mark.parametrize(
    "construct",
    """
    p.date-info-last-verified
    a.headerlink
    nav.contents
    ol.arabic ol.loweralpha ul
    li > div.highlight-python
    dl.simple > dd
    dl.field-list > dd
    div.line-block div.line-block
    dl.option-list
    table td ul
    table td[colspan]
    div.admonition.note ul
    div.admonition.warning
    div.admonition.attention
    div.admonition.seealso
    div.deprecated
    div.versionadded
    div.versionchanged
    aside.topic
    div.highlight-console
    div.highlight-bash
    div.highlight-yaml
    div.highlight-text
    div.highlight-cpp
    div.highlight-default .gp
    span.math
    div.math
    img[alt]
    a > img
    figure > figcaption
    cite
    sub
    abbr
    a.footnote-reference
    aside.footnote
    div.citation
    p.rubric
    blockquote p.attribution
    hr
    div.toctree-wrapper
    a.reference.internal > code
    a.reference.external
    b
    """.strip().split("\n"),
)
def test_notes_page_has_the_construct(site_root, construct):
    assert article(site_root, "docs/stable/notes/fsdp.html").select(construct.strip())


@pytest.mark.parametrize(
    "construct",
    ["dl.py.class dl.py.method", "dl.py.attribute", "dl.py.property", "dt a .viewcode-link", "h4", "table"],
)
def test_api_page_has_the_construct(site_root, construct):
    assert article(site_root, "docs/stable/distributed.html").select(construct)

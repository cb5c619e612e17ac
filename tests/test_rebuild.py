"""Building again: nothing is done when nothing has changed, and little is lost when much has."""

import json
from contextlib import nullcontext
from dataclasses import replace

import pytest

from skill_builder.build import BuildRequest, build_skill
from skill_builder.errors import NotASkill, Shrunk, SiteUnreachable
from skill_builder.pages.cache import cache_folder, clear
from skill_builder.rebuild import check_shrink, check_skill
from skill_builder.skill.assemble import Manifest, read_manifest
from tests.odd_site import OFFICIAL, QUICK, ROOMY, Site, article, inventory, serving
from tests.test_build import tree

FSDP, DISTRIBUTED = "/docs/stable/fsdp.html", "/docs/stable/distributed.html"


@pytest.fixture
def site():
    return Site.of(fsdp=["torch.distributed.fsdp.f"], distributed=["torch.distributed.d"])


@pytest.fixture
def url(site):
    with serving(site) as url:
        yield url


@pytest.fixture
def build(url, tmp_path):
    def run(**settings):
        return build_skill(BuildRequest(ROOMY, tmp_path / "pytorch-fsdp", url=url, manners=QUICK, **settings))

    return run


def times(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")} | {folder: folder.stat().st_mtime_ns}


def test_nothing_is_written_when_nothing_has_changed(site, build):
    first = build()
    before, bytes_before = times(first.out), tree(first.out)
    site.told.clear()
    again = build()
    assert first.changed and not again.changed
    assert (times(first.out), tree(first.out)) == (before, bytes_before)
    assert again.sizes == first.sizes
    assert again.manifest == read_manifest(first.out).manifest
    assert 200 not in site.told


def test_a_changed_page_is_built(site, build):
    build()
    site.answers[FSDP] = article("fsdp", "torch.distributed.fsdp.f", text="Something else.")
    report = build()
    assert report.changed
    assert "Something else." in "".join(path.read_text() for path in report.out.glob("references/docs-*.md"))


def test_a_page_that_is_new_is_built(site, build):
    build()
    names = ["fsdp", "distributed", "elastic/run"]
    site.answers["/docs/stable/objects.inv"] = inventory(*(f"{name} std:doc -1 {name}.html X" for name in names))
    site.answers["/docs/stable/elastic/run.html"] = article("run")
    assert len(build().manifest.pages) == 3


@pytest.mark.parametrize("damage", ["gone", "edited", "added"])
def test_a_skill_that_is_not_as_it_was_built_is_built_again(build, damage):
    out = build().out
    before = tree(out)
    if damage == "gone":
        (out / "SKILL.md").unlink()
    elif damage == "edited":
        (out / "SKILL.md").write_text("x", encoding="utf-8")
    else:
        (out / "more").write_text("x", encoding="utf-8")
    assert build().changed
    after = tree(out)
    del before["manifest.json"], after["manifest.json"]
    assert after == before


def test_a_damaged_manifest_is_none_and_is_built_anew(build):
    out = build().out
    for text in ("", "{", "[]", "null", '{"pages": 1}', "[" * 100_000, "\udcff"):
        (out / "manifest.json").write_bytes(text.encode(errors="surrogateescape"))
        assert read_manifest(out) is None
        with pytest.raises(NotASkill, match=r"manifest\.json: is missing, damaged or of another builder;"):
            check_skill(out, ROOMY)
    assert build().changed
    assert read_manifest(out) is not None


@pytest.mark.parametrize("key", ["pages", "counts", "notes", "made_from", "files", "stale"])
@pytest.mark.parametrize("value", [None, 3, "x", [], {}])
def test_a_manifest_with_a_wrong_value_is_none_or_as_it_says(tmp_path, key, value):
    manifest = Manifest("site", "", "", "stable", "2.13", "", counts={"sections": 4})
    said = {**json.loads(manifest.to_json({})), key: value}
    (tmp_path / "manifest.json").write_text(json.dumps(said), encoding="utf-8")
    built = read_manifest(tmp_path)
    assert built is None or not built.is_whole(tmp_path) or built.manifest.counts["sections"] == 4


def test_what_decides_what_is_written_decides_whether_to_build(build, monkeypatch):
    build()
    monkeypatch.setattr("skill_builder.rebuild.__version__", "another")
    assert build().changed
    assert not build().changed


def test_check_asks_only_whether_the_pages_have_changed(site, build):
    out = build().out
    site.told.clear()
    assert not check_skill(out, ROOMY)
    assert set(site.told) == {304, 404}


def test_check_names_the_pages(site, build):
    out = build().out
    site.answers[FSDP] = article("fsdp", text="Something else.")
    del site.answers[DISTRIBUTED]
    site.answers["/docs/stable/elastic/run.html"] = article("run")
    site.answers["/docs/stable/objects.inv"] = inventory(
        "fsdp std:doc -1 fsdp.html X", "elastic/run std:doc -1 elastic/run.html X"
    )
    changes = check_skill(out, ROOMY)
    assert changes.changed == (f"{OFFICIAL}fsdp.html",)
    assert changes.gone == (f"{OFFICIAL}distributed.html",)
    assert changes.new == (f"{OFFICIAL}elastic/run.html",)


def test_check_does_not_need_the_cache(site, build):
    out = build().out
    clear(cache_folder())
    assert not check_skill(out, ROOMY)


def test_check_fails_where_the_site_does(site, build):
    out = build().out
    site.answers["/docs/stable/objects.inv"] = 404
    with pytest.raises(Exception, match="the site answers 404"):
        check_skill(out, ROOMY)


def test_a_stale_page_is_marked_until_it_is_there_again(site, build):
    fresh = build()
    site.answers[FSDP], page = 500, site.answers[FSDP]
    with pytest.raises(SiteUnreachable):
        build()
    stale = build(allow_missing=1)
    assert json.loads((stale.out / "manifest.json").read_text())["stale"] == [f"{OFFICIAL}fsdp.html"]
    assert stale.manifest.pages == fresh.manifest.pages
    assert not build(allow_missing=1).changed
    site.answers[FSDP] = page
    assert build().manifest.stale == ()


def test_a_skill_that_loses_much_is_not_written(site, build):
    out = build().out
    before = tree(out)
    site.answers["/docs/stable/objects.inv"] = inventory("fsdp std:doc -1 fsdp.html X")
    with pytest.raises(
        Shrunk, match=r"2 sections, and the skill .* 4; 1 pages .* gone: .*distributed\.html; .*--accept-shrink"
    ):
        build()
    assert tree(out) == before
    report = build(accept_shrink=True)
    assert len(report.manifest.pages) == 1
    assert "distributed.html" in report.notes[0]


def test_a_page_that_vanished_is_noted(site, build):
    names = [f"torch.distributed.d{n}" for n in range(60)]
    many = Site.of(fsdp=[], distributed=names)
    site.answers = dict(many.answers)
    build()
    del site.answers[FSDP]
    lines = [f"{name} py:function 1 distributed.html#$ -" for name in names]
    site.answers["/docs/stable/objects.inv"] = inventory("distributed std:doc -1 distributed.html X", *lines)
    report = build()
    assert report.notes == (f"1 pages of the skill that was there are gone: {OFFICIAL}fsdp.html",)


def test_another_version_that_was_asked_for_is_not_a_loss(site, build):
    build()
    site.answers |= {path.replace("stable", "2.9"): page for path, page in Site.of(fsdp=[]).answers.items()}
    assert build(docs_version="2.9").manifest.counts["sections"] == 1


@pytest.mark.parametrize(
    ("before", "now", "is_loss"),
    [
        ({}, {"counts": {"sections": 97}}, False),
        ({}, {"counts": {"sections": 96}}, True),
        ({}, {"counts": {"sections": 9}, "docs_version": "2.9"}, False),
        ({}, {"counts": {"sections": 9}, "origin": "installed", "reason": "asked for"}, False),
        ({}, {"counts": {"sections": 9}, "origin": "installed", "reason": "the site is down"}, True),
        ({"origin": "installed"}, {"counts": {"sections": 9}, "reason": "asked for"}, False),
    ],
)
def test_a_loss_is_what_nobody_asked_for(before, now, is_loss):
    was = Manifest("site", "asked for", "", "stable", "2.13", "", counts={"sections": 100})
    with pytest.raises(Shrunk) if is_loss else nullcontext():
        check_shrink(replace(was, **before), replace(was, **now))


def test_nothing_is_parsed_when_nothing_has_changed(build, monkeypatch):
    build()
    monkeypatch.delattr("skill_builder.build.parse_pages")
    assert not build().changed

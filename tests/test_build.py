"""The builder end to end, over HTTP, and what it does when something is wrong."""

import json
import shutil
from dataclasses import replace

import pytest

from skill_builder import build
from skill_builder.build import BuildRequest, build_skill, check_coverage
from skill_builder.errors import BuilderError, CoverageError, PageMissing, PageUnusable, ScopeError, SourceError
from skill_builder.records import DocumentedObject, Page, PageSource
from skill_builder.scope import load_scope
from skill_builder.skill.validate import validate
from tests.documentation_site import serve

SCOPE = load_scope()


def tree(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def skill(site_url, tmp_path_factory):
    """A skill from the rendered site."""
    out = tmp_path_factory.mktemp("skill") / "pytorch-fsdp"
    return build_skill(BuildRequest(SCOPE, out, source="site", url=site_url))


def test_every_documented_object_has_its_section(skill):
    coverage = skill.manifest.coverage
    assert coverage["documented"] == coverage["with_section"] > 40
    assert coverage["missing"] == ()


def test_the_manifest_says_what_was_built(skill, site_url):
    manifest = json.loads((skill.out / "manifest.json").read_text(encoding="utf-8"))
    assert (manifest["origin"], manifest["reason"], manifest["address"]) == ("site", "asked for", site_url)
    assert "https://docs.pytorch.org/docs/stable/distributed.html" in manifest["pages"]
    assert set(manifest["files"]) == set(tree(skill.out)) - {"manifest.json"}
    assert any(url.endswith("notes/fsdp.html#code") for url in manifest["reworded"])
    assert "lacks 7 pages" in manifest["notes"][0]


def test_the_skill_holds_together(skill):
    assert [finding for finding in validate(skill.out) if finding.severity == "error"] == []


def test_the_docs_site_gives_a_skill_that_holds_together(built_skill):
    assert [finding for finding in validate(built_skill) if finding.severity == "error"] == []
    manifest = json.loads((built_skill / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["coverage"]["missing"] == []


def test_what_is_too_much_in_all_leaves_sections_out(skill, site_url, tmp_path):
    written = [path for path in skill.sizes if path != "manifest.json"]
    limit = sum(skill.sizes[path] for path in written) // build.KIB + build.MANIFEST_KIB - 2
    scope = replace(SCOPE, budget=replace(SCOPE.budget, skill=limit), leave_out=("rpc", "distributed"))
    report = build_skill(BuildRequest(scope, tmp_path / "pytorch-fsdp", source="site", url=site_url))
    assert sum(report.sizes.values()) <= limit * build.KIB
    assert skill.manifest.left_out == {}
    assert list(report.manifest.left_out) == ["https://docs.pytorch.org/docs/stable/distributed.html"]


def test_the_same_pages_give_the_same_bytes(skill, site_url, tmp_path):
    again = build_skill(BuildRequest(SCOPE, tmp_path / "pytorch-fsdp", source="site", url=site_url))
    first, second = tree(skill.out), tree(again.out)
    del first["manifest.json"], second["manifest.json"]
    assert first == second


def changed(site_root, tmp_path, path, change):
    """A copy of the rendered site in which one page is changed, or gone."""
    copy = tmp_path / "site"
    shutil.copytree(site_root, copy)
    if change is None:
        (copy / path).unlink()
    else:
        (copy / path).write_bytes(change((copy / path).read_bytes()))
    return copy


@pytest.mark.parametrize(
    ("path", "change", "error", "message"),
    [
        ("docs/stable/notes/fsdp.html", None, PageMissing, "the site answers 404"),
        ("docs/stable/notes/fsdp.html", lambda html: b"", PageUnusable, "the page is empty"),
        ("docs/stable/notes/fsdp.html", lambda html: b"<p>Moved</p>", PageUnusable, "the page has no article"),
        ("docs/stable/distributed.html", lambda html: html.replace(b"torch.distributed.barrier", b"x"), CoverageError,
         "no section for torch.distributed.barrier"),
        ("docs/stable/objects.inv", lambda data: data[:-9], SourceError, "not a Sphinx inventory"),
    ],
)  # fmt: skip
def test_a_bad_page_fails_the_build_and_the_skill_stays(site_root, tmp_path, path, change, error, message):
    out = tmp_path / "pytorch-fsdp"
    with serve(site_root) as url:
        build_skill(BuildRequest(SCOPE, out, source="site", url=url))
    before = tree(out)
    with serve(changed(site_root, tmp_path, path, change)) as url, pytest.raises(error, match=message):
        build_skill(BuildRequest(SCOPE, out, source="site", url=url))
    assert tree(out) == before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["pytorch-fsdp", "site"]


def test_what_is_missing_may_be_allowed(site_root, tmp_path):
    copy = changed(site_root, tmp_path, "docs/stable/elastic/run.html", None)
    with serve(copy) as url:
        report = build_skill(BuildRequest(SCOPE, tmp_path / "pytorch-fsdp", source="site", url=url, allow_missing=1))
    assert "torch.distributed.run" in report.manifest.coverage["missing"]
    assert any("docs/stable/elastic/run.html" in note for note in report.manifest.notes)


def test_a_page_without_a_category_is_named(site_url, tmp_path):
    pages = tuple(replace(category, pages=()) for category in SCOPE.categories)
    with pytest.raises(ScopeError, match="no category takes the page"):
        build_skill(BuildRequest(replace(SCOPE, categories=pages), tmp_path / "x", source="site", url=site_url))
    assert list(tmp_path.iterdir()) == []


def installed_stand_in(scope, *, progress):
    raise AssertionError("not asked for")


def test_auto_takes_the_site_where_it_answers(site_url, tmp_path, monkeypatch):
    monkeypatch.setattr(build, "installed_pages", installed_stand_in)
    report = build_skill(BuildRequest(SCOPE, tmp_path / "pytorch-fsdp", url=site_url))
    assert (report.manifest.origin, report.manifest.reason) == ("site", "the site answers")


def down():
    """The address of a server that was there a moment ago."""
    with serve(build.Path("/tmp")) as url:
        pass
    return url


def test_auto_falls_back_to_the_installed_torch_and_says_why(tmp_path, monkeypatch):
    def installed(scope, *, progress):
        url = "https://docs.pytorch.org/docs/stable/fsdp.html"
        page = Page(url, "<article><section id='a'><h1>FSDP</h1><p>Text.</p></section></article>")
        return PageSource("installed", "torch 2.13.0", "2.13", (), iter([page]))

    monkeypatch.setattr(build, "installed_pages", installed)
    report = build_skill(BuildRequest(SCOPE, tmp_path / "pytorch-fsdp", url=down()))
    assert report.manifest.origin == "installed"
    assert "no answer (cannot connect)" in report.manifest.reason


def test_neither_source_is_an_error_with_both_remedies(tmp_path, monkeypatch):
    def no_torch(scope, *, progress):
        raise build.TorchUnusable("torch", "is not installed", "pip install 'fsdp-skill[torch]'")

    monkeypatch.setattr(build, "installed_pages", no_torch)
    with pytest.raises(SourceError) as caught:
        build_skill(BuildRequest(SCOPE, tmp_path / "pytorch-fsdp", url=down()))
    assert "cannot connect" in str(caught.value)
    assert "--url; or pip install 'fsdp-skill[torch]'" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_the_installed_torch_gives_a_skill_too(tmp_path):
    report = build_skill(BuildRequest(SCOPE, tmp_path / "pytorch-fsdp", source="installed"))
    assert report.manifest.coverage["missing"] == ()
    assert report.manifest.coverage["documented"] > 700
    assert [finding for finding in validate(report.out) if finding.severity == "error"] == []


def test_objects_without_a_section_are_named_one_by_one():
    objects = [DocumentedObject(f"a.{name}", "function", f"u#a.{name}") for name in "fg"]
    with pytest.raises(CoverageError, match=r"no section for a\.f, a\.g; report it, or build with --allow-missing"):
        check_coverage(objects, [], allow_missing=False)
    assert check_coverage(objects, [], allow_missing=True) == ("a.f", "a.g")
    assert issubclass(CoverageError, BuilderError)

"""What several tests use."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from skill_builder.build import BuildRequest, build_skill, index_entries
from skill_builder.corpus.availability import with_availability
from skill_builder.corpus.parse import parse_page
from skill_builder.corpus.references import write_references
from skill_builder.history import load_history
from skill_builder.index.entries import Entry, load_search
from skill_builder.pages.site import site_pages as site_pages_of
from skill_builder.records import Page, Section
from skill_builder.scope import OFFICIAL_SITE, load_scope, page_name
from skill_builder.skill.assemble import read_hand_written, sources
from tests.documentation_site import render_site, serve

DOCS_SITE = Path(__file__).parents[2] / "shared" / "docs-site"


@pytest.fixture(scope="session", autouse=True)
def cache_of_the_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is fetched for several tests is not kept in the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def cache_of_the_test(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder for each test: servers come and go at the same addresses."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture(scope="session")
def site_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A rendered documentation site: ``docs/stable/`` and ``tutorials/``. Treat it as read-only."""
    folder = tmp_path_factory.mktemp("site")
    render_site(folder / "root", folder / "doctrees")
    return folder / "root"


@pytest.fixture(scope="session")
def site_url(site_root: Path) -> Iterator[str]:
    """The URL where the site is served; it stands for https://docs.pytorch.org/."""
    with serve(site_root) as url:
        yield url


@pytest.fixture(scope="session")
def site_pages(site_root: Path) -> list[Page]:
    """The pages of the rendered site that are in scope."""
    paths = [path.relative_to(site_root).as_posix() for path in sorted(site_root.rglob("*.html"))]
    scope = load_scope()
    wanted = [path for path in paths if scope.has_page(page_name(path)) or page_name(path) in scope.tutorials]
    return [Page(OFFICIAL_SITE + path, (site_root / path).read_text("utf-8")) for path in wanted]


@pytest.fixture(scope="session")
def docs_site() -> Path:
    """A copy of 41 official pages that lies beside the checkout, where there is one."""
    if not DOCS_SITE.is_dir():
        pytest.skip(f"{DOCS_SITE} is absent")
    return DOCS_SITE


@pytest.fixture(scope="session")
def docs_site_url(docs_site: Path) -> Iterator[str]:
    """The URL where it is served."""
    with serve(docs_site) as url:
        yield url


@pytest.fixture(scope="session")
def docs_site_pages(docs_site_url: str) -> list[Page]:
    """Its pages in scope."""
    return list(site_pages_of(load_scope(), base=docs_site_url).pages)


@pytest.fixture(scope="session")
def docs_site_sections_list(docs_site_pages: list[Page]) -> list[Section]:
    """Its sections."""
    scope = load_scope()
    return [section for page in docs_site_pages for section in parse_page(page, scope)]


@pytest.fixture(scope="session")
def docs_site_sections(docs_site_sections_list: list[Section]) -> dict[str, str]:
    """Place (``page.html#anchor``) -> text of the section, or of the one that a further anchor leads to."""
    texts = {}
    for section in docs_site_sections_list:
        page, _, anchor = section.url.rpartition("/docs/stable/")[2].partition("#")
        for name in (anchor, *section.anchors):
            texts.setdefault(f"{page}#{name}", f"{section.title}\n{section.markdown}")
    return texts


@pytest.fixture(scope="session")
def built_skill(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A skill as the command line builds it: from docs-site where that is, else from the rendered site."""
    url = request.getfixturevalue("docs_site_url" if DOCS_SITE.is_dir() else "site_url")
    out = tmp_path_factory.mktemp("built") / "pytorch-fsdp"
    build_skill(BuildRequest(load_scope(), out, source="site", url=url))
    return out


@pytest.fixture(scope="session")
def indexed_entries(built_skill: Path, docs_site_sections_list: list[Section]) -> list[Entry]:
    """What the index of the built skill was made from, made again."""
    scope, search = load_scope(), load_search(sources() / "scripts")
    manifest = json.loads((built_skill / "manifest.json").read_text("utf-8"))
    version = manifest["documentation"]
    sections = with_availability(docs_site_sections_list, load_history(), version)
    references = write_references(sections, scope, version)
    guides = read_hand_written(sources()).guides
    return index_entries(references, guides, search)[0]

"""What changed between two builds, as values, as text and as a page in a real browser."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from skill_builder.drift import KINDS, as_html, as_json, as_text, compare_builds, read_built
from skill_builder.drift.signatures import compare_signatures
from skill_builder.errors import NotASkill, SkillError
from skill_builder.index.entries import load_search
from skill_builder.skill.assemble import sources
from tests.built_skills import PAGE, documented, heading, write_built

COMMAND = [str(Path(sys.executable).with_name("fsdp-skill")), "diff"]
TEXT = "Shards the parameters of a module over the ranks of a mesh, and gathers them again before each forward."
TOP = heading("FSDP2", "Fully sharded data parallelism in its second form, for each parameter on its own.")
SHARD = documented("torch.distributed.fsdp.fully_shard", "def fully_shard(module, *, mesh=None): ...", TEXT)
OTHER_TEXT = "Keeps the shards of parameters, gradients and optimizer states in the memory of the host until needed."
OFFLOAD = documented("torch.distributed.fsdp.OffloadPolicy", "class OffloadPolicy: ...", OTHER_TEXT)


@pytest.fixture
def drift_of(tmp_path):
    """The drift between two lists of sections."""

    def build(old, new, **settings):
        before = write_built(tmp_path / "old", old, **settings.pop("old_settings", {}))
        after = write_built(tmp_path / "new", new, **settings)
        return compare_builds(read_built(before), read_built(after))

    return build


def happened(drift):
    return [(change.entry.title, change.kinds) for change in drift.changes]


def test_the_same_sections_are_no_difference(drift_of):
    drift = drift_of([TOP, SHARD], [TOP, SHARD], version="2.14")
    assert drift.changes == ()
    assert as_text(drift) == "PyTorch 2.13 -> PyTorch 2.14: no difference\n"
    assert "No difference." in as_html(drift)


def test_added_and_removed(drift_of):
    drift = drift_of([TOP, SHARD], [TOP, OFFLOAD])
    assert sorted(happened(drift)) == [(OFFLOAD.title, ("added",)), (SHARD.title, ("removed",))]


def test_a_changed_signature_names_the_parameter(drift_of):
    stub = "def fully_shard(module, *, mesh: DeviceMesh = None, overlap=False): ..."
    drift = drift_of([TOP, SHARD], [TOP, documented(SHARD.name, stub, TEXT)])
    (change,) = drift.changes
    assert change.kinds == ("signature",)
    assert [str(item) for item in change.signature] == [
        "mesh: annotation none -> DeviceMesh",
        "parameter overlap added: overlap=False",
    ]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("def f(a, b): ...", "def f(a): ...", ["parameter b removed: b"]),
        ("def f(a, b=1): ...", "def f(a, *, b=1): ...", ["b: kind positional -> keyword-only"]),
        ("def f(a, b): ...", "def f(b, a): ...", ["order a, b -> b, a"]),
        ("def f(*a): ...", "def f(**k): ...", ["parameter a removed: *a", "parameter k added: **k"]),
        ("def f(): ...", "def f() -> int: ...", ["returns none -> int"]),
        ("x: int = 1", "x: int = 2", ["value 1 -> 2"]),
        (
            "class A:\n    def __init__(self, x: int = 1): ...",
            "class A:\n    def __init__(self, x: str = 1): ...",
            ["x: annotation int -> str"],
        ),
        ("def f(x: list[int] = []): ...", "def f(\n    x: list[int]=[],\n): ...", []),
        ("def f(): ...", "f(oops", ["signature def f(): ... -> f(oops"]),
        ("def f(): ...", "def f(): ...\ndef f(x): ...", ["signature def f(): ... -> def f(): ...\ndef f(x): ..."]),
        ("def f(): ...", "@staticmethod\ndef f(): ...", ["signature def f(): ... -> @staticmethod\ndef f(): ..."]),
    ],
)
def test_signatures(old, new, said):
    assert [str(change) for change in compare_signatures(old, new)] == said
    assert compare_signatures(old, old) == []


def test_a_changed_text_is_seen_and_a_new_wrapping_is_not(drift_of):
    wrapped = TEXT.replace(" over", "\nover")
    assert (
        drift_of([SHARD], [documented(SHARD.name, "def fully_shard(module, *, mesh=None): ...", wrapped)]).changes == ()
    )
    changed = TEXT.replace("before", "after")
    drift = drift_of([SHARD], [documented(SHARD.name, "def fully_shard(module, *, mesh=None): ...", changed)])
    assert happened(drift) == [(SHARD.title, ("text",))]


def test_code_is_compared_line_by_line(drift_of):
    before, after = ("Do this:\n\n```python\nx = 1\n    y = 2\n```", "Do this:\n\n```python\nx = 1\ny = 2\n```")
    drift = drift_of([heading("Use", before)], [heading("Use", after)])
    assert happened(drift) == [("Use", ("text",))]


def test_a_link_that_finds_its_section_in_the_skill_is_no_difference(drift_of):
    linking = replace(TOP, markdown=f"{TOP.markdown} See [`OffloadPolicy`]({OFFLOAD.url}) for the host's memory.")
    drift = drift_of([linking, OFFLOAD], [linking])
    assert happened(drift) == [(OFFLOAD.title, ("removed",))]


def test_another_version_of_the_documentation_has_the_same_sections(drift_of):
    elsewhere = [replace(section, url=section.url.replace("stable", "2.9")) for section in (TOP, SHARD)]
    assert drift_of(elsewhere, [TOP, SHARD]).changes == ()


def test_an_object_on_another_page_has_moved(drift_of):
    page = "https://docs.pytorch.org/docs/stable/fsdp.html"
    first = heading("FSDP", "The page of the first form, with another text than the second has.", page=page)
    there = replace(SHARD, url=f"{page}#{SHARD.name}")
    drift = drift_of([TOP, SHARD, first], [TOP, first, there])
    (change,) = drift.changes
    assert (change.entry.title, change.kinds) == (SHARD.title, ("moved",))
    assert change.notes == (f"page {PAGE} -> {page}",)


def test_an_object_of_another_module_with_the_same_text_has_moved(drift_of):
    name = "torch.distributed.fully_shard"
    there = documented(name, "def fully_shard(module, *, mesh=None): ...", TEXT)
    (change,) = drift_of([TOP, SHARD], [TOP, there]).changes
    assert change.kinds == ("moved",)
    assert change.notes == (f"name {SHARD.name} -> {name}",)


def test_a_section_in_another_file_has_moved(drift_of):
    drift = drift_of([TOP, SHARD], [TOP, replace(SHARD, category="fsdp1")])
    (change,) = drift.changes
    assert (change.kinds, change.category) == (("moved",), "fsdp1")


def test_a_heading_with_a_new_title_and_the_same_text_has_moved(drift_of):
    (change,) = drift_of([TOP], [heading("FSDP, the second", TOP.markdown)]).changes
    assert (change.kinds, change.old.title, change.new.title) == (("moved",), "FSDP2", "FSDP, the second")


def test_short_texts_are_not_alike_by_chance(drift_of):
    drift = drift_of([heading("One", "See below.")], [heading("Two", "See below.")])
    assert sorted(change.kinds for change in drift.changes) == [("added",), ("removed",)]


def test_newly_deprecated_quotes_the_sentence(drift_of):
    text = f"{TEXT} This function is deprecated. Use another."
    (change,) = drift_of([SHARD], [documented(SHARD.name, "def fully_shard(module, *, mesh=None): ...", text)]).changes
    assert change.kinds == ("deprecated", "text")
    assert change.notes == ("This function is deprecated.",)


def test_what_was_deprecated_before_is_not_newly_so(drift_of):
    before = f"{TEXT} This function is deprecated. Use another."
    after = f"{TEXT} It is deprecated since 2.9. Use another."
    stub = "def fully_shard(module, *, mesh=None): ..."
    (change,) = drift_of([documented(SHARD.name, stub, before)], [documented(SHARD.name, stub, after)]).changes
    assert change.kinds == ("text",)


def test_a_line_above_the_signature_is_text(drift_of):
    since = replace(SHARD, markdown=f"*Since torch 2.6.*\n\n{SHARD.markdown}")
    (change,) = drift_of([TOP, SHARD], [TOP, since]).changes
    assert (change.kinds, change.new.signature) == (("text",), change.old.signature)
    deprecated = replace(SHARD, markdown=f"*Since torch 2.6; deprecated since 2.9.*\n\n{SHARD.markdown}")
    (change,) = drift_of([TOP, since], [TOP, deprecated]).changes
    assert change.kinds == ("deprecated", "text")


def test_a_section_without_room_is_not_said_to_be_removed(drift_of):
    drift = drift_of([TOP, SHARD], [TOP], left_out=[SHARD])
    assert happened(drift) == [(SHARD.title, ("left-out",))]
    (row,) = [row for row in drift.categories if row.category == "fsdp2"]
    assert (row.sections, row.left_out) == ((2, 1), (0, 1))


def test_a_section_that_has_room_again_is_not_said_to_be_new(drift_of):
    drift = drift_of([TOP], [TOP, SHARD], old_settings={"left_out": [SHARD]})
    assert happened(drift) == [(SHARD.title, ("taken-in",))]


def test_guides_scripts_and_assets_are_compared_too(drift_of):
    guide = "# Start\n\nFirst shard the blocks.\n\n```python\n# Start\n```\n"
    drift = drift_of(
        [TOP],
        [TOP],
        old_settings={"references/guide-start.md": guide, "assets/run.sh": "torchrun\n"},
        **{"references/guide-start.md": guide.replace("First", "Then"), "scripts/new.py": "pass\n"},
    )
    assert happened(drift) == [("assets/run.sh", ("removed",)), ("Start", ("text",)), ("scripts/new.py", ("added",))]


def test_every_section_of_a_built_skill_is_read_as_the_index_knows_it(built_skill):
    index = load_search(sources() / "scripts").Index(str(built_skill))
    places = zip(index.section, index.first, strict=False)
    known = {index.url(section): index.is_object(section) for section, first in places if first}
    read = {entry.key: entry.kind == "object" for entry in read_built(built_skill).entries if entry.url}
    assert read == {url: is_object for url, is_object in known.items() if url.startswith("http")}


def test_json_has_places_details_and_the_lines_that_differ(drift_of):
    changed = documented(SHARD.name, "def fully_shard(module, *, mesh=1): ...", TEXT)
    data = as_json(drift_of([TOP, SHARD], [TOP, changed]))
    assert data["summary"] == {"signature": 1}
    (change,) = data["changes"]
    assert change["new"]["url"] == SHARD.url
    assert change["signature"] == [{"what": "default", "name": "mesh", "old": "None", "new": "1"}]
    assert "+def fully_shard(module, *, mesh=1): ..." in change["diff"]


def run(*arguments):
    return subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, check=False)


def test_the_exit_status_says_whether_there_is_a_difference(tmp_path):
    old = write_built(tmp_path / "old", [TOP, SHARD])
    new = write_built(tmp_path / "new", [TOP])
    assert run(old, old).returncode == 0
    done = run(old, new, "--json", "--html", tmp_path / "page.html")
    assert done.returncode == 3, done.stderr
    assert json.loads(done.stdout)["summary"] == {"removed": 1}
    assert SHARD.title in (tmp_path / "page.html").read_text("utf-8")
    failed = run(old, new, "--html", tmp_path / "no" / "page.html")
    assert failed.returncode == 1
    assert "cannot be written (No such file or directory); name another file with --html" in failed.stderr


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "secret").write_text("not to be shown", encoding="utf-8")
    skill = write_built(tmp_path / "old", [TOP])
    (skill / "references" / "guide-x.md").symlink_to(tmp_path / "secret")
    assert not [entry for entry in read_built(skill).entries if "guide-x" in entry.file]


def test_what_is_no_skill_or_damaged_is_named(tmp_path):
    with pytest.raises(NotASkill, match=r"has no SKILL\.md"):
        read_built(tmp_path)
    skill = write_built(tmp_path / "old", [TOP])
    (skill / "manifest.json").write_text("{", encoding="utf-8")
    with pytest.raises(SkillError, match=r"manifest\.json: is damaged; "):
        read_built(skill)


# The page, in a browser.

HOSTILE = '</pre><img src=x onerror="alert(1)"><script src="http://elsewhere.invalid/x.js"></script>{{ 7 * 7 }}'


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    """A page with changes of several kinds in several categories, and a text that means harm."""
    folder = tmp_path_factory.mktemp("page")
    page = "https://docs.pytorch.org/docs/stable/fsdp.html"
    first = heading("FSDP1", "The first form of it.", page=page, category="fsdp1")
    old = [TOP, SHARD, OFFLOAD, first]
    new = [
        replace(TOP, markdown=f"{TOP.markdown} {HOSTILE}"),
        documented(SHARD.name, "def fully_shard(module, *, mesh=None, overlap=False): ...", f"{TEXT} {HOSTILE}"),
        replace(first, markdown="The first form of it. It is deprecated."),
        documented("torch.distributed.fsdp.added", "def added(): ...", "New.", page=page, category="fsdp1"),
    ]
    pair = write_built(folder / "old", old), write_built(folder / "new", new, version="2.14")
    (folder / "page.html").write_text(as_html(compare_builds(*map(read_built, pair))), encoding="utf-8")
    return folder / "page.html"


@pytest.fixture(scope="module")
def browser():
    """Chromium as the system has it."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no chromium is installed: apt-get install chromium")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as playwright:
        # The sandbox needs rights that a container does not give; the page is our own.
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(browser, page_file):
    """Opens the page; afterwards nothing was complained of and nothing was asked for."""
    pages, complaints, requests = [], [], []

    def start(**settings):
        page = browser.new_page(**settings)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message) or dialog.dismiss())
        page.on("request", lambda request: requests.append(request.url))
        page.goto(page_file.as_uri())
        pages.append(page)
        return page

    yield start
    assert complaints == []
    assert requests == [page_file.as_uri()] * len(pages)
    for page in pages:
        page.close()


def shown(page):
    titles = page.locator(".change:visible .title").all_inner_texts()
    assert page.locator("#shown").inner_text().startswith(f"{len(titles)} of ")
    return titles


ADDED = "torch.distributed.fsdp.added"


def test_the_page_shows_every_change_and_hostile_text_as_text(opened):
    page = opened()
    assert sorted(shown(page)) == ["FSDP1", "FSDP2", OFFLOAD.name, ADDED, SHARD.name]
    page.click("#open")
    assert page.locator(".change[open]").count() == 5
    assert page.locator("main img, main script, body > script[src]").count() == 0
    assert sum(HOSTILE in text for text in page.locator(".diff").all_inner_texts()) == 2


def test_the_page_filters_by_kind_category_and_name(opened):
    page = opened()
    page.click("button[data-kind=added]")
    assert shown(page) == [ADDED]
    page.click("button[data-kind=removed]")
    assert shown(page) == [ADDED, OFFLOAD.name]
    page.click("button[data-kind=added]")
    page.click("button[data-kind=removed]")
    assert len(shown(page)) == 5
    page.select_option("#category", "fsdp1")
    assert shown(page) == ["FSDP1", ADDED]
    page.fill("#find", "FSDP1")
    assert shown(page) == ["FSDP1"]
    page.fill("#find", "nothing like it")
    assert shown(page) == []
    assert page.locator("#none").is_visible()


def test_the_differences_stand_below_or_beside_each_other(opened):
    page = opened(viewport={"width": 1200, "height": 900})
    page.click("#open")
    row = page.locator(".row:not(.same):not(.gap)", has=page.locator("mark")).first
    old, new = row.locator(".old"), row.locator(".new")
    assert old.bounding_box()["x"] == new.bounding_box()["x"]
    assert old.bounding_box()["y"] < new.bounding_box()["y"]
    page.check("#side")
    assert old.bounding_box()["x"] < new.bounding_box()["x"]
    assert old.bounding_box()["y"] == new.bounding_box()["y"]


def test_the_page_fits_a_phone(opened):
    page = opened(viewport={"width": 360, "height": 740})
    page.click("#open")
    assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_every_text_can_be_read_in_the_light_and_in_the_dark(opened):
    backgrounds = []
    for scheme in ("light", "dark"):
        page = opened(color_scheme=scheme)
        page.click("#open")
        backgrounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert page.evaluate(CONTRASTS) == []
    assert backgrounds[0] != backgrounds[1]


# Elements whose text has less contrast than WCAG 2.2, 1.4.3 asks for (4.5 to 1).
CONTRASTS = """() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const luminance = (colour) => rgb(colour).slice(0, 3)
    .map((part) => part / 255).map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (element) => {
    const colour = getComputedStyle(element).backgroundColor;
    return rgb(colour)[3] === 0 ? behind(element.parentElement) : colour;
  };
  const bad = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !element.checkVisibility() || element.tagName === "OPTION") continue;
    const pair = [luminance(getComputedStyle(element).color), luminance(behind(element))].sort((a, b) => b - a);
    const contrast = (pair[0] + 0.05) / (pair[1] + 0.05);
    if (contrast < 4.5) bad.push(`${element.className || element.tagName} ${contrast.toFixed(2)}`);
  }
  return [...new Set(bad)];
}"""


def test_kinds_have_a_name_each():
    assert len(set(KINDS.values())) == len(KINDS)

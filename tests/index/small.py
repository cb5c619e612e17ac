"""A skill of three sections, for tests that need no more."""

import shutil

from skill_builder.corpus.references import Placed
from skill_builder.index.build import build_index
from skill_builder.index.entries import index_entry, load_search
from skill_builder.index.passages import cut_file, left_out, titles_of
from skill_builder.records import Section
from skill_builder.skill.assemble import sources

PAGE = "https://docs.pytorch.org/docs/stable/a.html"
PARAGRAPH = "gather " * 100
TEXT = f"## Shard\n\nIt splits the parameters of a shard.\n\n## Long\n\n{(PARAGRAPH + chr(10) * 2) * 4}"


def section(anchor, title):
    return Section(f"{PAGE}#{anchor}", title, "heading", "", "", 0, "", "fsdp2")


def small_skill(folder):
    """A section of one passage, one of four, and one that there was no room for."""
    search = load_search(sources() / "scripts")
    short, long, gone = section("shard", "Shard"), section("long", "Long"), section("gone", "Gone")
    placed = [Placed(short, "docs-a.md", (1, 4)), Placed(long, "docs-a.md", (5, TEXT.count("\n") + 1))]
    passages = [*cut_file("docs-a.md", TEXT, placed, titles_of([short, long])), *left_out([gone])]
    entries = [index_entry(passage, search.tokenize) for passage in passages]
    for name in ("references", "scripts"):
        (folder / name).mkdir(parents=True)
    (folder / "references" / "docs-a.md").write_text(TEXT, encoding="utf-8")
    index = build_index(entries, [short, long, gone], "2.13", search)
    (folder / "references" / "index.json").write_text(index, encoding="utf-8")
    shutil.copy(sources() / "scripts" / "search_docs.py", folder / "scripts")
    return folder

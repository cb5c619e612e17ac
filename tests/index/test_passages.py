"""Passages: whole paragraphs, list items and code blocks, with their lines."""

from skill_builder.corpus.references import Placed
from skill_builder.index.passages import TARGET_CHARS, cut_file, guide_sections, left_out, titles_of
from skill_builder.records import Section

URL = "https://docs.pytorch.org/docs/stable/a.html"


def section(anchor, title, parent="", depth=0):
    return Section(f"{URL}#{anchor}", title, "heading", "", parent, depth, "", "fsdp2")


def cut(text, *places, name="docs-a.md"):
    return list(cut_file(name, text, places, titles_of(place.section for place in places)))


def whole(text):
    return Placed(section("a", "A"), "docs-a.md", (1, text.count("\n") + 1))


def test_a_short_section_is_one_passage_with_its_heading():
    text = "## A\n\nOne.\n\nTwo.\n"
    (passage,) = cut(text, whole(text))
    assert (passage.lines, passage.text) == ((1, 5), "## A\n\nOne.\n\nTwo.")
    assert (passage.file, passage.url, passage.category) == ("docs-a.md", f"{URL}#a", "fsdp2")


def test_a_long_section_is_cut_between_paragraphs_and_list_items():
    item = "- " + "word " * 60
    text = "## A\n\n" + "text " * 130 + "\n\n" + "\n".join([item.rstrip()] * 4) + "\n"
    passages = cut(text, whole(text))
    assert [passage.lines for passage in passages] == [(1, 3), (5, 6), (7, 8)]
    assert all(len(passage.text) <= TARGET_CHARS for passage in passages)


def test_a_code_block_is_never_cut_and_the_heading_is_never_alone():
    code = "```python\n" + "x = 1\n\n" * 400 + "```"
    text = f"## A\n\n{code}\n\nAfter.\n"
    passages = cut(text, whole(text))
    assert [passage.lines for passage in passages] == [(1, 804), (806, 806)]


def test_a_code_block_in_a_list_item_stays_in_it():
    text = "## A\n\n- item\n\n  ```python\n  x\n  ```\n- next\n"
    (passage,) = cut(text, whole(text))
    assert passage.lines == (1, 8)


def test_titles_lead_from_the_page_down():
    page, inner = section("a", "A"), section("b", "B", parent=f"{URL}#a", depth=1)
    text = "## A\n\nOne.\n\n### B\n\nTwo.\n"
    passages = cut(text, Placed(page, "docs-a.md", (1, 3)), Placed(inner, "docs-a.md", (5, 7)))
    assert [passage.titles for passage in passages] == [("A",), ("A", "B")]


def test_a_guide_has_a_section_a_heading_with_a_fragment_of_its_own():
    text = "# Top\n\nIntro.\n\n## `Run` it\n\nA.\n\n## Run it\n\nB.\n"
    placed = list(guide_sections("guide-x.md", text))
    passages = cut(text, *placed, name="guide-x.md")
    assert [(place.section.url, place.section.title, place.lines) for place in placed] == [
        ("references/guide-x.md#top", "Top", (1, 4)),
        ("references/guide-x.md#run-it", "Run it", (5, 8)),
        ("references/guide-x.md#run-it-1", "Run it", (9, 12)),
    ]
    assert [passage.titles for passage in passages] == [("Top",), ("Top", "Run it"), ("Top", "Run it")]
    assert {passage.category for passage in passages} == {"guides"}


def test_what_is_left_out_has_a_passage_without_text():
    (passage,) = left_out([section("z", "Z")])
    assert (passage.lines, passage.text, passage.url) == ((0, 0), "", f"{URL}#z")

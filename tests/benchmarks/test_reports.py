"""The reports of the benchmarks: every tool has its row and its point, every target its verdict."""

from xml.etree import ElementTree as ET

import pytest

from benchmarks import build_time, search_time
from benchmarks.processes import Cost, median_ratio, verdict
from benchmarks.retrieval import HEIGHT, WIDTH, Comparison, Tool, as_markdown, plot
from skill_builder.index.evaluate import Figures, Question

QUESTION = Question("Q1", "?", "howto", "fsdp2", (), ())
SVG = "{http://www.w3.org/2000/svg}"


def figures(share):
    return Figures(1, share, share, share)


@pytest.fixture
def comparison():
    shares = {"pytorch-fsdp": (0.9, 20.0), "Skill Seekers": (0.04, 60.0), "all-MiniLM-L6-v2": (0.5, 9000.0)}
    tools = [Tool(name, {"own questions": figures(share)}, ms) for name, (share, ms) in shares.items()]
    styles = {"own questions": {"howto": figures(0.9)}}
    return Comparison({"own questions": [QUESTION]}, tools, styles, {"own questions": (3, 2)}, {"bm25s": "not here"})


def test_the_table_has_a_row_a_tool_and_says_why_one_is_skipped(comparison):
    text = as_markdown(comparison)
    assert "| **pytorch-fsdp** | 0.90 | 0.90 | 0.90 | 20 |" in text
    assert "| Skill Seekers | 0.04 | - | - | 60 |" in text
    assert "bm25s was skipped: not here." in text
    assert "of one run on one machine" in text
    assert "2 of 3 of the own questions." in text


def test_every_tool_is_a_point_inside_the_plot_with_its_name(comparison):
    drawing = ET.fromstring(plot(comparison))
    points = [(float(point.get("cx")), float(point.get("cy"))) for point in drawing.iter(f"{SVG}circle")]
    assert len(points) == len(comparison.tools)
    assert all(0 < x < WIDTH and 0 < y < HEIGHT for x, y in points)
    texts = [text.text for text in drawing.iter(f"{SVG}text")]
    assert all(any(text.startswith(tool.name) for text in texts) for tool in comparison.tools)


def test_the_reports_of_speed_say_what_is_missed():
    builds = build_time.Builds(40, [Cost(5.0, 190.0)], [Cost(8.0, 80.0)])
    assert "Time against Skill Seekers: 0.62 (target 0.5, missed). Memory: 190 MB (target 400)." in (
        build_time.as_markdown(builds)
    )
    cold = {search_time.BARE: [10.0], search_time.OURS: [20.0], search_time.SEEKERS: [50.0]}
    warm = {search_time.OURS: [2.0], f"{search_time.PASSAGES} (9)": [4.0]}
    text = search_time.as_markdown(search_time.Searches(cold, warm, dict.fromkeys(cold, 15.0)))
    assert "Against Skill Seekers: 0.40 (target 0.6). Against a bare interpreter: 2.00 (target 2.5)." in text
    assert "Against rank_bm25 on the same passages: 0.50 (target 1)." in text


def test_a_ratio_is_the_median_of_the_rounds():
    assert median_ratio([1, 10, 3], [2, 10, 1]) == 1
    assert verdict(0.6, 0.5) == "0.60 (target 0.5, missed)"

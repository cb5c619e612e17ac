"""What changed between two builds of the skill: read both, compare them by section and object, show it."""

from skill_builder.drift.compare import KINDS, Change, Drift, compare_builds
from skill_builder.drift.page import as_html
from skill_builder.drift.read import Built, Entry, read_built
from skill_builder.drift.report import as_json, as_text

__all__ = [
    "KINDS",
    "Built",
    "Change",
    "Drift",
    "Entry",
    "as_html",
    "as_json",
    "as_text",
    "compare_builds",
    "read_built",
]

"""The fenced blocks of SKILL.md and the guides."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
DOCUMENTS = (ROOT / "SKILL.md", *sorted((ROOT / "references").glob("guide-*.md")))
LISTS = ("guide-lint.md", "guide-versions.md")
"""Guides that are lists, of mistakes and of releases: they name what some release lacks."""
PROSE = tuple(path for path in DOCUMENTS if path.name not in LISTS)
GPU_MARK = "# needs GPUs"
"""First line of a Python block that cannot run without them."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block with a language."""

    file: str
    line: int
    """Where its text begins, counted from 1."""
    language: str
    text: str

    @property
    def place(self) -> str:
        """Where it stands, for a message."""
        return f"{self.file}:{self.line}"

    @property
    def needs_gpus(self) -> bool:
        """Whether it says so in its first line."""
        return self.text.startswith(GPU_MARK)

    @property
    def is_distributed(self) -> bool:
        """Whether it is to be started by torchrun."""
        return "torch.distributed" in self.text


def run_module(name: str, *arguments: object) -> None:
    """Run a module of these tests in a process of its own, on one thread a process; it must end well."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.guides.{name}", *map(str, arguments)],
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def blocks(*languages: str) -> list[Block]:
    """Every block in one of the languages."""
    return [block for path in DOCUMENTS for block in _blocks(path) if block.language in languages]


def _blocks(path: Path) -> list[Block]:
    tokens = MarkdownIt("commonmark").parse(path.read_text("utf-8"))
    return [
        Block(path.relative_to(ROOT).as_posix(), token.map[0] + 2, token.info.split()[0], token.content)
        for token in tokens
        if token.type == "fence" and token.info.strip() and token.map
    ]

"""The README and SKILL.md say what is there."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from skill_builder.cli import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
SKILL_MD = (ROOT / "SKILL.md").read_text("utf-8")
TABLE = README[README.index("## Maintain it") :]


def commands(command, name=""):
    """Every command of the command line, with those of its groups."""
    for sub, found in command.commands.items():
        yield from commands(found, f"{name}{sub} ") if hasattr(found, "commands") else [f"{name}{sub}"]


@pytest.mark.parametrize("name", sorted(commands(main)))
def test_a_command_has_help_and_is_in_the_readme(name):
    shown = CliRunner().invoke(main, [*name.split(), "--help"])
    assert shown.exit_code == 0
    assert len(shown.output.splitlines()) > 3
    assert f"`{name.split()[0]}`" in TABLE.replace("`fsdp-skill ", "`")


def test_the_readme_names_no_command_that_is_not_there():
    named = {words.split()[0] for words in re.findall(r"fsdp-skill ([a-z]+)", README)}
    assert named <= {name.split()[0] for name in commands(main)}


def test_the_readmes_first_screen_is_the_two_commands():
    screen = README.split("\n")[:25]
    assert any(line.startswith("$ make skill") for line in screen)
    assert any(line.startswith("$ make test") for line in screen)


def test_make_targets_that_are_named_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    documents = README + (ROOT / ".ci" / "run").read_text("utf-8")
    assert set(re.findall(r"`make ([a-z]+)`|^\$ make ([a-z]+)", documents, re.MULTILINE)) != set()
    assert {a or b for a, b in re.findall(r"`make ([a-z]+)|^\$ make ([a-z]+)", documents, re.MULTILINE)} <= targets


@pytest.mark.parametrize("text", [README, SKILL_MD], ids=["README.md", "SKILL.md"])
def test_every_path_that_is_named_exists(text):
    paths = {path.rstrip(".") for path in re.findall(r"(?:scripts|assets|references|benchmarks)/[\w./*-]+", text)}
    assert [path for path in sorted(paths) if "*" not in path and not (ROOT / path).exists()] == []


def test_skill_md_fits_an_agents_context_and_its_trigger_the_system_prompt():
    assert len(SKILL_MD) / 4 < 4000
    description = re.search(r"^description: (.*)$", SKILL_MD, re.MULTILINE)[1]
    assert all(word in description[:57] for word in ("FSDP", "FSDP2", "sharded training"))
    assert len(description) <= 1024

"""The strict Agent Skills validator takes the rendering that is made for it, and no other."""

import shutil
import subprocess

import pytest

from skill_builder.skill.frontmatter import render
from skill_builder.skill.validate import validate


@pytest.fixture
def agentskills(client_bin):
    return client_bin("agentskills") / "agentskills"


def rendered(skill, target, folder):
    """A copy of a skill whose SKILL.md is rendered for another target."""
    copy = shutil.copytree(skill, folder / skill.name)
    skill_md = copy / "SKILL.md"
    source = skill_md.read_text(encoding="utf-8")
    skill_md.write_text(render(source, target, version="1.2.3"), encoding="utf-8")
    return copy


def check(agentskills, skill, env):
    """Exit code and everything that the validator says about a skill folder."""
    arguments = [agentskills, "validate", skill]
    done = subprocess.run(arguments, env=env, capture_output=True, text=True, encoding="utf-8", check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_strict_validator_accepts_its_target(built_skill, agentskills, client_env, tmp_path):
    skill = rendered(built_skill, "agentskills", tmp_path)
    assert check(agentskills, skill, client_env) == (0, f"Valid skill: {skill}\n")


def test_the_strict_validator_refuses_the_other_target(built_skill, agentskills, client_env, tmp_path):
    code, said = check(agentskills, rendered(built_skill, "hermes", tmp_path), client_env)
    assert code == 1
    assert "Unexpected fields in frontmatter: author, dependencies, platforms, version" in said


@pytest.mark.parametrize("target", ["hermes", "agentskills"])
def test_both_targets_pass_validation_here(small_skill, tmp_path, target, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert validate(rendered(small_skill, target, tmp_path)) == []

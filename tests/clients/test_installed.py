"""The real Hermes sees what fsdp-skill installs and publishes: one skill, whole."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from skill_builder.skill.install import STAGING, carry_out, locked, place_in, plan_install, same_name
from skill_builder.skill.publish import package, write_package
from tests.built_skills import heading, write_built

OTHER = "---\nname: {name}\ndescription: Another skill\n---\n\nOther.\n"


@pytest.fixture
def hermes(client_bin):
    return client_bin("hermes")


@pytest.fixture
def home(tmp_path):
    return tmp_path / "hermes-home"


@pytest.fixture
def view(hermes, client_env, home):
    """What Hermes loads when the agent asks for the skill."""

    def ask():
        program = "from tools.skills_tool import skill_view; print(skill_view('pytorch-fsdp'))"
        environment = {**client_env, "HERMES_HOME": str(home)}
        done = subprocess.run(
            [hermes / "python", "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        return json.loads(done.stdout)

    return ask


def install(skill, home, **settings):
    with locked(home):
        return carry_out(plan_install(skill, home, **settings))


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_hermes_loads_what_was_installed(built_skill, home, view):
    install(built_skill, home)
    seen = view()
    assert seen["success"]
    assert Path(seen["skill_dir"]) == place_in(home)
    assert len(seen["linked_files"]["references"]) == len(list((built_skill / "references").glob("*.md")))


def test_hermes_sees_one_skill_while_another_is_on_its_way(built_skill, home, view):
    install(built_skill, home)
    shutil.copytree(place_in(home), place_in(home).with_name(STAGING) / "new-x")
    shutil.copytree(place_in(home), place_in(home).with_name(STAGING) / "gone-x" / "pytorch-fsdp")
    assert view()["success"]


# Where another skill may lie, and whether Hermes takes it for one of the same name.
PLACES = [
    ("skills/mlops/training/pytorch-fsdp/SKILL.md", "other", True),
    ("skills/pytorch-fsdp/SKILL.md", "pytorch-fsdp", True),
    ("skills/mlops/fsdp/SKILL.md", "pytorch-fsdp", True),
    ("skills/mlops/fsdp/SKILL.md", '"pytorch-fsdp"', True),
    ("skills/notes/pytorch-fsdp.md", "other", True),
    ("skills/scripts/pytorch-fsdp/SKILL.md", "other", True),
    ("skills/mlops/fsdp/SKILL.md", "pytorch-fsdp2", False),
    ("skills/.archive/pytorch-fsdp/SKILL.md", "pytorch-fsdp", False),
    ("skills/mlops/pytorch-fsdp/references/pytorch-fsdp.md", "other", False),
    ("skills/mlops/pytorch-fsdp/references/pytorch-fsdp/SKILL.md", "pytorch-fsdp", False),
    ("kept-by-fsdp-skill/pytorch-fsdp/SKILL.md", "pytorch-fsdp", False),
]


@pytest.mark.parametrize(("path", "name", "is_same"), PLACES)
def test_install_and_hermes_agree_on_what_has_the_same_name(built_skill, home, view, path, name, is_same):
    install(built_skill, home)
    write(home / path, OTHER.format(name=name))
    seen = view()
    assert seen["success"] is not is_same
    assert ("Ambiguous skill name" in seen.get("error", "")) is is_same
    assert bool(same_name(home / "skills", place_in(home))) is is_same


def test_after_a_replacing_install_hermes_loads_the_new_skill(built_skill, home, view):
    for path, name, is_same in PLACES:
        if is_same:
            write(home / path, OTHER.format(name=name))
    write(place_in(home) / "SKILL.md", OTHER.format(name="pytorch-fsdp"))
    install(built_skill, home, replace=True)
    seen = view()
    assert seen["success"]
    assert "Other." not in seen["content"]


def test_hermes_installs_every_file_from_a_well_known_tree(hermes, client_env, home, serve, tmp_path):
    skill = write_built(tmp_path / "pytorch-fsdp", [heading("FSDP2", "Sharding.")])
    write_package(tmp_path / "site", package(skill, "hermes", "well-known"))
    url = f"well-known:{serve(tmp_path / 'site')}/.well-known/skills/pytorch-fsdp"
    arguments = [hermes / "hermes", "skills", "install", url, "--yes", "--category", "mlops"]
    environment = {**client_env, "HERMES_HOME": str(home)}
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=True)
    assert "Decision: ALLOWED" in done.stdout
    assert contents(place_in(home)) == contents(tmp_path / "site/.well-known/skills/pytorch-fsdp")

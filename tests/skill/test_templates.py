"""Copying a training template."""

from __future__ import annotations

from pathlib import Path

import pytest

import skill_builder
from skill_builder.errors import SkillError
from skill_builder.skill.assemble import sources
from skill_builder.skill.templates import TEMPLATES, copy_template

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_copy_is_the_script_under_a_header(tmp_path, name):
    copy = copy_template(name, tmp_path, force=False)
    assert copy == tmp_path / f"train_{name}.py"
    first, rest = copy.read_text().split("\n", 1)
    assert first == (
        f"# From fsdp-skill {skill_builder.__version__}, scripts/train_{name}.py. "
        "Yours to change; it needs no other file."
    )
    assert rest == (SCRIPTS / f"train_{name}.py").read_text()
    compile(copy.read_text(), str(copy), "exec")


def test_every_template_has_a_name():
    assert sorted(path.name for path in (sources() / "scripts").glob("train_*.py")) == sorted(
        f"train_{name}.py" for name in TEMPLATES
    )


def test_a_file_name_will_do_and_so_will_a_new_name(tmp_path):
    copy = copy_template("train_fsdp2.py", tmp_path / "mine.py", force=False)
    assert copy == tmp_path / "mine.py"
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]


def test_nothing_is_overwritten_without_force(tmp_path):
    mine = tmp_path / "train_fsdp2.py"
    mine.write_text("my own work")
    with pytest.raises(SkillError) as raised:
        copy_template("fsdp2", tmp_path, force=False)
    assert str(raised.value) == f"{mine}: a file is there; give another name, or --force to overwrite it"
    assert mine.read_text() == "my own work"
    assert copy_template("fsdp2", tmp_path, force=True) == mine
    assert mine.read_text().startswith("# From fsdp-skill ")


def test_a_link_to_nowhere_is_something_too(tmp_path):
    (tmp_path / "link.py").symlink_to(tmp_path / "nowhere")
    with pytest.raises(SkillError):
        copy_template("fsdp2", tmp_path / "link.py", force=False)


def test_an_unknown_name_lists_the_known_ones(tmp_path):
    with pytest.raises(SkillError) as raised:
        copy_template("fsdp3", tmp_path, force=False)
    assert str(raised.value) == ("fsdp3: no such template; take one of fsdp1, fsdp2, mixed_precision, cpu_offload")


def test_a_missing_folder_is_named(tmp_path):
    target = tmp_path / "nowhere" / "train.py"
    with pytest.raises(SkillError) as raised:
        copy_template("fsdp2", target, force=False)
    assert str(raised.value) == (
        f"{target}: cannot be written (No such file or directory); give a path that can be written"
    )

import sys
from pathlib import Path

import pytest

from skill_builder.errors import SkillError
from skill_builder.skill.client import find_client


def script(folder, first_line):
    path = folder / "hermes"
    path.write_text(f"{first_line}\nprint()\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_the_interpreter_is_the_one_in_the_scripts_first_line(tmp_path):
    assert find_client(script(tmp_path, f"#!{sys.executable}")) == Path(sys.executable)


@pytest.mark.parametrize("first_line", ["#!/bin/sh", "#!/nowhere/python3", "MZ"])
def test_else_it_is_the_python_beside_the_script(tmp_path, first_line):
    assert find_client(script(tmp_path, first_line)) == tmp_path / "python"


def test_a_link_to_the_script_leads_to_its_environment(tmp_path, monkeypatch):
    environment, links = tmp_path / "environment", tmp_path / "links"
    environment.mkdir()
    links.mkdir()
    (links / "hermes").symlink_to(script(environment, "#!/bin/sh"))
    monkeypatch.setenv("PATH", str(links))
    assert find_client(None) == environment / "python"


def test_without_a_client_there_is_none(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_client(None) is None


def test_a_client_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(SkillError) as raised:
        find_client(tmp_path / "hermes")
    assert str(raised.value) == (
        f"{tmp_path}/hermes: does not exist; name the client's python or its hermes executable"
    )

"""The real Hermes Agent installs the built skill, lists it and opens it."""

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from skill_builder.skill.frontmatter import split
from skill_builder.skill.validate import TRIGGER_WORDS, UNDELIVERED, Finding, validate


@dataclass(frozen=True)
class Installed:
    folder: Path
    said: str
    lock: dict


@pytest.fixture(scope="session")
def hermes(client_bin):
    return client_bin("hermes")


@pytest.fixture(scope="session")
def installed(built_skill, hermes, client_env, serve):
    """One install for all tests: the client waits a minute for catalogues that it cannot reach."""
    return install(built_skill, hermes, client_env, serve)


def install(skill, hermes, env, serve):
    """Install a skill folder as a user does, from its SKILL.md's URL."""
    url = f"{serve(skill.parent)}/{skill.name}/SKILL.md"
    arguments = [hermes / "hermes", "skills", "install", url, "--yes", "--category", "mlops"]
    done = subprocess.run(arguments, env=env, capture_output=True, text=True, encoding="utf-8", check=True)
    skills = Path(env["HERMES_HOME"]) / "skills"
    lock = json.loads((skills / ".hub" / "lock.json").read_text(encoding="utf-8"))
    return Installed(skills / "mlops" / skill.name, done.stdout, lock["installed"][skill.name])


def ask(hermes, env, program):
    """What a few lines of Python print in the client's interpreter."""
    arguments = [hermes / "python", "-c", program]
    return subprocess.run(arguments, env=env, capture_output=True, text=True, encoding="utf-8", check=True).stdout


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_install_scan_finds_nothing(installed):
    assert "Verdict: SAFE\nDecision: ALLOWED" in installed.said
    assert installed.lock["scan_verdict"] == "safe"
    assert installed.lock["scan_provenance"]["findings"] == []


def test_every_file_arrives_byte_for_byte(built_skill, installed):
    sent = {name: data for name, data in contents(built_skill).items() if name not in UNDELIVERED}
    assert contents(installed.folder) == sent


def test_the_system_prompt_keeps_the_trigger_words(installed, hermes, client_env):
    program = "from agent.prompt_builder import build_skills_system_prompt as build; print(build())"
    lines = ask(hermes, client_env, program).splitlines()
    (line,) = [line for line in lines if line.strip().startswith(f"- {installed.folder.name}:")]
    fields, _ = split((installed.folder / "SKILL.md").read_text(encoding="utf-8"))
    shown = line.partition(": ")[2]
    assert shown.removesuffix("...") == fields["description"][: len(shown.removesuffix("..."))]
    assert [word for word in TRIGGER_WORDS if word not in shown] == []


def test_skill_view_lists_references_scripts_and_assets(installed, hermes, client_env):
    program = f"from tools.skills_tool import skill_view; print(skill_view({installed.folder.name!r}))"
    view = json.loads(ask(hermes, client_env, program))
    listed = {folder: sorted(paths) for folder, paths in view["linked_files"].items()}
    names = sorted(contents(installed.folder))
    assert listed == {
        "references": [n for n in names if n.startswith("references/") and n.endswith(".md")],
        "scripts": [n for n in names if n.startswith("scripts/")],
        "assets": [n for n in names if n.startswith("assets/")],
    }
    assert "${HERMES_SKILL_DIR}" not in view["content"]


def test_the_installed_search_answers_with_the_standard_library_alone(installed, client_env):
    script = installed.folder / "scripts" / "search_docs.py"
    arguments = [sys.executable, "-I", "-S", script, "--", "How do I shard a model with fully_shard?"]
    done = subprocess.run(arguments, env=client_env, capture_output=True, text=True, encoding="utf-8", check=True)
    assert "fully_shard" in done.stdout


@pytest.mark.parametrize("executable", ["python", "hermes"])
def test_validation_runs_the_clients_scanner(small_skill, hermes, tmp_path, executable):
    skill = shutil.copytree(small_skill, tmp_path / small_skill.name)
    assert validate(skill, hermes=hermes / executable) == []
    (skill / "assets" / "launch.sh").write_text("cd /tmp\nsudo ls\nchmod 777 x\n", encoding="utf-8")
    assert validate(skill, hermes=hermes / executable) == [
        Finding(
            "assets/launch.sh",
            2,
            "scanner",
            "error",
            "Hermes says high, sudo_usage: uses sudo (privilege escalation) (sudo ls)",
            "reword it",
        ),
        Finding(
            "assets/launch.sh",
            3,
            "scanner",
            "warning",
            "Hermes says medium, insecure_perms: sets world-writable permissions (chmod 777 x)",
            "reword it",
        ),
    ]


def test_the_client_is_found_on_the_path(small_skill, hermes, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(hermes))
    skill = shutil.copytree(small_skill, tmp_path / small_skill.name)
    (skill / "LICENSE").chmod(0o755)
    assert validate(skill) == [
        Finding(
            "LICENSE",
            0,
            "scanner",
            "warning",
            "Hermes says medium, unexpected_executable: file has executable permission but is not a "
            "recognized script type (executable bit set)",
            "change the file",
        )
    ]

"""The workflows of GitHub Actions are well formed, and run what can be run here."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from skill_builder.cli import main

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
BIN = Path(sys.executable).parent


def load(path):
    """A workflow; YAML takes its key ``on`` for a truth value."""
    return yaml.load(path.read_text("utf-8"), Loader=yaml.BaseLoader)


def steps(workflow):
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def commands(path):
    return [line.strip() for step in steps(load(path)) for line in step.get("run", "").splitlines() if line.strip()]


def schema_says(*paths):
    line = [BIN / "check-jsonschema", "--builtin-schema", "vendor.github-workflows", *paths]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def make(*arguments, **settings):
    return subprocess.run(["make", *arguments], capture_output=True, text=True, check=False, **settings)


def test_there_is_one_for_changes_one_for_every_week_and_one_for_releases():
    assert [path.stem for path in WORKFLOWS] == ["ci", "rebuild", "release"]
    ci, rebuild, release = (load(path)["on"] for path in WORKFLOWS)
    assert set(ci) == {"push", "pull_request"}
    (schedule,) = rebuild["schedule"]
    _, _, day, month, weekday = schedule["cron"].split()
    assert (day, month) == ("*", "*")
    assert weekday in set("0123456")
    assert release == {"push": {"tags": ["v*"]}}


def test_the_schema_of_github_takes_them():
    done = schema_says(*WORKFLOWS)
    assert done.returncode == 0, done.stdout


def test_the_schema_refuses_a_workflow_that_is_wrong(tmp_path):
    wrong = tmp_path / "ci.yml"
    wrong.write_text(WORKFLOWS[0].read_text("utf-8").replace("runs-on", "run-on"), encoding="utf-8")
    done = schema_says(wrong)
    assert done.returncode == 1
    assert "run-on" in done.stdout


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_they_run_what_runs_here(path):
    for command in commands(path):
        program, *arguments = shlex.split(command)
        if program == "make":
            assert make("--dry-run", "--always-make", *arguments, cwd=ROOT).returncode == 0, command
        else:
            assert program == ".ci/run"
            assert os.access(ROOT / program, os.X_OK)


def test_a_target_that_does_not_exist_is_noticed():
    assert make("--dry-run", "rebuilt", cwd=ROOT).returncode != 0


def test_changes_are_checked_by_what_checks_them_everywhere():
    assert commands(WORKFLOWS[0]) == [".ci/run"]
    assert (ROOT / ".ci" / "run").read_text("utf-8").splitlines()[-1] == "exec make test"


def test_nothing_is_put_into_a_shell_that_others_can_name():
    """A branch or tag can be called anything; it comes in as an environment variable."""
    for path in WORKFLOWS:
        assert [command for command in commands(path) if "${{" in command] == []


def test_only_the_release_may_write():
    for path in WORKFLOWS:
        workflow = load(path)
        assert workflow["permissions"] == {"contents": "read"}
        granted = [job["permissions"] for job in workflow["jobs"].values() if "permissions" in job]
        assert granted == ([{"contents": "write"}] if path.stem == "release" else [])


def test_the_makefile_calls_commands_and_options_that_exist():
    calls = re.findall(r"fsdp-skill ([a-z]+) ([^\n|]*)", (ROOT / "Makefile").read_text("utf-8"))
    assert {name for name, _ in calls} >= {"build", "validate", "diff", "package"}
    for name, rest in calls:
        known = {option for parameter in main.commands[name].params for option in parameter.opts}
        assert set(re.findall(r"--[a-z]+(?:-[a-z]+)*", rest)) <= known, name


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A folder with the Makefile that takes its environment for installed."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    (folder / ".venv").mkdir()
    (folder / ".venv" / "installed").touch()
    return folder


def test_a_rebuild_compares_with_the_build_before_and_packs(checkout, site_url):
    settings = [f"BIN={BIN}", "HERMES=", "SOURCE=site", f"URL={site_url}"]
    environment = {**os.environ, "PATH": "/usr/bin:/bin"}
    first = make("rebuild", *settings, cwd=checkout, env=environment)
    assert first.returncode == 0, first.stdout + first.stderr
    assert not (checkout / "dist/changes.html").exists()

    manifest = checkout / "dist/pytorch-fsdp/manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text("utf-8")), "documentation": "1.0"}), "utf-8")
    (checkout / "dist/pytorch-fsdp/references/docs-fsdp2.md").unlink()
    second = make("rebuild", *settings, cwd=checkout, env=environment)
    assert second.returncode == 0, second.stdout + second.stderr
    assert "PyTorch 1.0" in (checkout / "dist/changes.html").read_text("utf-8")

    packed = make("packages", *settings, "TAG=v0.1.0", cwd=checkout, env=environment)
    assert packed.returncode == 0, packed.stdout + packed.stderr
    sums = (checkout / "dist/SHA256SUMS").read_text("utf-8").split()[1::2]
    assert sums == ["pytorch-fsdp-0.1.0-hermes.zip", "pytorch-fsdp-0.1.0-agentskills.zip"]
    other = make("packages", *settings, "TAG=v9.9.9", cwd=checkout, env=environment)
    assert other.returncode != 0

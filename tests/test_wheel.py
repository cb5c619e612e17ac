"""The wheel: what pip installs holds all that the commands need, outside any checkout."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """The fsdp-skill of an environment with the wheel; what it depends on is that of the tests."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    build = ["wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", folder, ROOT]
    subprocess.run([*PIP, *build], check=True, timeout=100)
    (wheel,) = folder.glob("fsdp_skill-*.whl")
    venv.create(folder / "env")
    python = folder / "env" / "bin" / "python"
    subprocess.run([*PIP, "--python", python, "install", "--no-deps", "--no-index", wheel], check=True, timeout=100)
    (site,) = (folder / "env").glob("lib/python*/site-packages")
    (site / "tests.pth").write_text(sysconfig.get_path("purelib"))  # after the wheel, which so comes first
    return folder / "env" / "bin" / "fsdp-skill"


@pytest.fixture
def run(command, tmp_path):
    """Run a command in an empty folder."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def run(*arguments):
        place = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
        return subprocess.run([command, *arguments], **place, timeout=100, check=False)

    return run


def test_template_is_that_of_the_checkout(run, tmp_path):
    done = run("template", "fsdp2", "train.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "train.py").read_bytes().endswith((ROOT / "scripts" / "train_fsdp2.py").read_bytes())


def test_search_finds_in_the_guides_that_the_wheel_holds(run, command):
    (skill,) = command.parent.parent.glob("lib/python*/site-packages/skill_builder/_skill")
    done = run("search", "--dir", skill, "--limit", "1", "--", "fully_shard")
    assert (done.returncode, done.stderr) == (0, "")
    assert "references/guide-" in done.stdout


def test_index_of_an_installed_package_is_left_alone(run, command):
    done = run("index")
    assert (done.returncode, done.stdout) == (1, "")
    assert "skill_builder/_skill: an installed package, whose index is fresh; run it in a checkout" in done.stderr

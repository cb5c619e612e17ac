"""One command from the documentation to the installed skill."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from skill_builder.build import BuildRequest
from skill_builder.errors import InvalidSkill, NotASkill, SiteUnreachable
from skill_builder.scope import load_scope
from skill_builder.skill.install import STAGING, carry_out, locked, place_in, plan_install
from skill_builder.skill.manifest import edited_files, load_manifest
from skill_builder.update import UpdateRequest, update
from tests.built_skills import documented, heading, write_built
from tests.documentation_site import serve

KILLS = int(os.environ.get("KILLS", "2"))
"""How often a process is killed; more for a figure worth reporting."""
SECTIONS = [
    heading("FSDP2", "Fully sharded data parallelism, for each parameter on its own."),
    documented("torch.distributed.fsdp.fully_shard", "def fully_shard(module): ...", "Shards a module."),
]


@pytest.fixture
def home(tmp_path):
    """Hermes' home with an old skill."""
    folder = tmp_path / "home"
    skill = write_built(tmp_path / "old" / "pytorch-fsdp", SECTIONS, version="1.0")
    with locked(folder):
        carry_out(plan_install(skill, folder))
    return folder


@pytest.fixture
def request_for(home, site_url, monkeypatch, tmp_path):
    """A request to update from the rendered site, on a machine without the client."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def make(url=site_url, **settings):
        build = BuildRequest(load_scope(), Path("nowhere"), source="site", url=url, docs_version="stable")
        return UpdateRequest(build, home, **settings)

    return make


def version_in(home):
    return load_manifest(place_in(home))["documentation"]


def test_an_update_says_what_changed_and_installs_it(request_for, home):
    report = update(request_for())
    assert version_in(home) not in ("1.0", None)
    assert edited_files(place_in(home)) == []
    changed = {change.entry.title: change.kinds for change in report.drift.changes}
    assert "signature" in changed["torch.distributed.fsdp.fully_shard"]
    again = update(request_for())
    assert (again.plan, again.drift.changes) == (None, ())


def test_a_dry_run_builds_and_compares_and_installs_nothing(request_for, home):
    report = update(request_for(dry_run=True))
    assert report.plan is not None
    assert report.drift.changes
    assert version_in(home) == "1.0"


def test_where_the_documentation_is_the_same_nothing_is_built(request_for, home):
    asked = []
    report = update(request_for(url="http://127.0.0.1:9/"), has_changed=lambda folder: bool(asked.append(folder)))
    assert asked == [place_in(home)]
    assert (report.drift, report.plan) == (None, None)


def test_a_skill_of_another_builder_is_built_anew_whatever_the_documentation(request_for, home, monkeypatch):
    monkeypatch.setattr("skill_builder.update.__version__", "9.9.9")
    with serve(home) as url:
        pass
    with pytest.raises(SiteUnreachable):
        update(request_for(url=url), has_changed=lambda folder: False)
    assert version_in(home) == "1.0"


def test_a_failing_validation_installs_nothing(request_for, home, monkeypatch):
    monkeypatch.setattr("skill_builder.skill.validate.MAX_SKILL_TOKENS", 10)
    with pytest.raises(InvalidSkill, match=r"SKILL\.md:0: \d+ tokens"):
        update(request_for())
    assert version_in(home) == "1.0"


def test_without_an_installed_skill_the_remedy_is_named(request_for, home):
    (place_in(home) / "manifest.json").unlink()
    with pytest.raises(NotASkill, match="has installed no skill there; run fsdp-skill install first"):
        update(request_for())


def test_a_build_that_fails_installs_nothing(request_for, home, tmp_path):
    (tmp_path / "site").mkdir()
    with serve(tmp_path / "site") as url, pytest.raises(Exception, match=r"objects\.inv|no answer|does not have"):
        update(request_for(url=url))
    assert version_in(home) == "1.0"


def command(*arguments, **settings):
    line = [str(Path(sys.executable).with_name("fsdp-skill")), "update", *map(str, arguments)]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **settings)


def test_the_command_prints_what_changed_and_writes_the_page(home, site_url, tmp_path):
    page = tmp_path / "page.html"
    process = command(
        "--source", "site", "--url", site_url, "--home", home, "--html", page, env={**os.environ, "PATH": ""}
    )
    printed, said = process.communicate()
    assert process.returncode == 0, said
    assert printed.startswith("PyTorch 1.0 -> PyTorch ")
    assert printed.endswith(f"{place_in(home)}: installed\n")
    assert "torch.distributed.fsdp.fully_shard" in page.read_text("utf-8")


def test_a_killed_update_leaves_one_whole_skill_and_the_next_one_works(home, site_url, request_for, tmp_path):
    old = tmp_path / "old" / "pytorch-fsdp"
    chance = random.Random(8)
    arguments = ("--source", "site", "--url", site_url, "--home", home)
    settings = {"env": {**os.environ, "PATH": ""}, "start_new_session": True}
    started = time.monotonic()
    process = command(*arguments, **settings)
    process.communicate()
    duration = time.monotonic() - started
    assert process.returncode == 0
    outcomes = []
    for _ in range(KILLS):
        with locked(home):
            carry_out(plan_install(old, home))
        process = command(*arguments, **settings)
        time.sleep(chance.uniform(0, duration))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        assert edited_files(place_in(home)) == []
        outcomes.append("old" if version_in(home) == "1.0" else "new")
    print(f"{KILLS} kills of update: {outcomes.count('old')} old, {outcomes.count('new')} new, none damaged")
    update(request_for())
    assert version_in(home) != "1.0"
    assert not place_in(home).with_name(STAGING).exists()

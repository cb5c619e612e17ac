"""Installing for Hermes: whole or not at all, and nothing of the user's is lost."""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from skill_builder.errors import NameTaken, NotASkill, SkillError
from skill_builder.skill import folders
from skill_builder.skill.install import (
    KEPT,
    STAGING,
    carry_out,
    hermes_home,
    locked,
    place_in,
    plan_install,
    plan_uninstall,
    same_name,
)
from skill_builder.skill.manifest import edited_files, load_manifest
from tests.built_skills import documented, heading, write_built

TOP = heading("FSDP2", "Fully sharded data parallelism, for each parameter on its own.")
SHARD = documented("torch.distributed.fsdp.fully_shard", "def fully_shard(module): ...", "Shards a module.")
KILLS = int(os.environ.get("KILLS", "6"))
"""How often a process is killed; more for a figure worth reporting."""


@pytest.fixture
def old(tmp_path):
    return write_built(tmp_path / "old" / "pytorch-fsdp", [TOP, SHARD], version="2.12")


@pytest.fixture
def new(tmp_path):
    return write_built(tmp_path / "new" / "pytorch-fsdp", [TOP], version="2.13")


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


def install(skill, home, **settings):
    with locked(home):
        return carry_out(plan_install(skill, home, **settings))


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def version_in(home):
    return load_manifest(place_in(home))["documentation"]


def everything_but_the_lock(home):
    return sorted(path.name for path in home.rglob("*") if path.is_file() and path.name != ".fsdp-skill.lock")


def other_skill(folder, name="pytorch-fsdp"):
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(f"---\nname: {name}\ndescription: x\n---\n", encoding="utf-8")
    (folder / "notes.md").write_text("worth keeping\n", encoding="utf-8")
    return folder


def test_the_installed_skill_is_the_built_one(old, home):
    assert install(old, home) == []
    installed = place_in(home)
    assert {name: data for name, data in contents(installed).items() if name.startswith("ref")} == {
        name: data for name, data in contents(old).items() if name.startswith("ref")
    }
    assert edited_files(installed) == []
    assert os.access(installed / "scripts/search_docs.py", os.X_OK)
    assert not installed.with_name(STAGING).exists()


def test_a_plan_writes_nothing(old, home):
    plan = plan_install(old, home)
    assert not plan.replaces
    assert not home.exists()


def test_a_new_version_takes_the_place_of_the_old_one(old, new, home):
    install(old, home)
    assert install(new, home) == []
    assert version_in(home) == "2.13"
    assert set(contents(place_in(home))) == set(contents(new))
    assert not (home / KEPT).exists()


def test_the_same_version_is_up_to_date(old, home):
    install(old, home)
    manifest = load_manifest(old)
    (old / "manifest.json").write_text(json.dumps({**manifest, "built": "later"}), encoding="utf-8")
    assert plan_install(old, home).is_same
    (old / "manifest.json").write_text(json.dumps({**manifest, "pages": {"x": "y"}}), encoding="utf-8")
    assert not plan_install(old, home).is_same
    install(old, home)
    assert plan_install(old, home).is_same
    shutil.rmtree(place_in(home) / "scripts")
    assert not plan_install(old, home).is_same


def test_running_the_skill_is_no_edit(old, home):
    install(old, home)
    cache = place_in(home) / "scripts" / "__pycache__"
    cache.mkdir()
    (cache / "search_docs.cpython-311.pyc").write_bytes(b"x")
    assert plan_install(old, home).edited == ()


def test_what_the_user_changed_and_added_is_kept(old, new, home):
    install(old, home)
    (place_in(home) / "SKILL.md").write_text("mine\n", encoding="utf-8")
    (place_in(home) / "references" / "guide-mine.md").write_text("also mine\n", encoding="utf-8")
    assert plan_install(new, home).edited == ("SKILL.md", "references/guide-mine.md")
    (kept,) = install(new, home)
    assert kept.parent == home / KEPT
    assert contents(kept) == {"SKILL.md": b"mine\n", "references/guide-mine.md": b"also mine\n"}
    assert edited_files(place_in(home)) == []


def test_the_same_edit_is_kept_once(old, new, home):
    for skill in (old, new, old):
        install(skill, home)
        (place_in(home) / "SKILL.md").write_text("mine\n", encoding="utf-8")
    assert len(list((home / KEPT).iterdir())) == 1


def test_where_the_manifest_is_damaged_everything_is_kept(old, new, home):
    install(old, home)
    before = contents(place_in(home))
    (place_in(home) / "manifest.json").write_text("{", encoding="utf-8")
    (kept,) = install(new, home)
    del before["manifest.json"]
    assert contents(kept) == before
    assert version_in(home) == "2.13"


@pytest.mark.parametrize(
    "place", ["mlops/pytorch-fsdp", "mlops/training/pytorch-fsdp", "pytorch-fsdp", "mlops/fsdp-notes"]
)
def test_another_skill_of_the_name_makes_way_only_when_asked(new, home, place):
    other = other_skill(home / "skills" / place)
    before = contents(other)
    with pytest.raises(NameTaken, match=r"Hermes loads neither; install with --replace \(a copy goes to"):
        plan_install(new, home)
    assert contents(other) == before
    (kept,) = install(new, home, replace=True)
    assert contents(kept) == before
    assert version_in(home) == "2.13"
    assert same_name(home / "skills", place_in(home)) == []


def test_a_single_file_of_the_name_makes_way_too(new, home):
    home.joinpath("skills/notes").mkdir(parents=True)
    other = home / "skills/notes/pytorch-fsdp.md"
    other.write_text("old notes\n", encoding="utf-8")
    (kept,) = install(new, home, replace=True)
    assert contents(kept) == {"pytorch-fsdp.md": b"old notes\n"}
    assert not other.exists()


def test_a_link_makes_way_and_what_it_leads_to_stays(new, home, tmp_path):
    other = other_skill(tmp_path / "elsewhere" / "pytorch-fsdp")
    (home / "skills" / "mine").mkdir(parents=True)
    (home / "skills" / "mine" / "fsdp").symlink_to(other)
    (kept,) = install(new, home, replace=True)
    assert contents(kept) == contents(other) != {}
    assert not (home / "skills" / "mine" / "fsdp").exists()


def test_links_in_a_circle_end(new, home):
    (home / "skills" / "a").mkdir(parents=True)
    (home / "skills" / "a" / "again").symlink_to(home / "skills")
    assert same_name(home / "skills", place_in(home)) == []


def test_an_edited_link_is_kept_as_a_link_and_not_followed(old, new, home, tmp_path):
    install(old, home)
    secret = tmp_path / "secret"
    secret.write_text("not for copying", encoding="utf-8")
    (place_in(home) / "references" / "link.md").symlink_to(secret)
    (kept,) = install(new, home)
    assert (kept / "references" / "link.md").is_symlink()
    assert secret.read_text("utf-8") == "not for copying"


def test_uninstall_keeps_what_was_changed_and_leaves_other_skills(old, home):
    install(old, home)
    other = other_skill(home / "skills" / "mlops" / "other", name="other")
    (place_in(home) / "SKILL.md").write_text("mine\n", encoding="utf-8")
    with locked(home):
        (kept,) = carry_out(plan_uninstall(home))
    assert contents(kept) == {"SKILL.md": b"mine\n"}
    assert not place_in(home).exists()
    assert other.is_dir()


def test_uninstall_refuses_what_is_not_ours(home):
    with pytest.raises(NotASkill, match="no skill is installed there"):
        plan_uninstall(home)
    other_skill(place_in(home))
    with pytest.raises(NotASkill, match="fsdp-skill did not install this"):
        plan_uninstall(home)


def test_a_damaged_source_is_not_installed(old, new, home):
    install(old, home)
    (new / "references/index.json").write_text("{}", encoding="utf-8")
    with pytest.raises(SkillError, match="is not as it was built"):
        install(new, home)
    assert version_in(home) == "2.12"


def test_a_folder_that_cannot_be_written_leaves_the_old_skill(old, new, home, monkeypatch):
    install(old, home)

    def full(*_):
        raise OSError(28, "No space left on device", "x")

    monkeypatch.setattr("skill_builder.skill.install.write_files", full)
    with pytest.raises(SkillError, match=r"cannot be written \(No space left on device\); free some space"):
        install(new, home)
    assert version_in(home) == "2.12"
    assert not place_in(home).with_name(STAGING).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk takes root")
def test_a_full_disk_leaves_the_old_skill(old, tmp_path):
    home = tmp_path / "small"
    home.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", home], check=False).returncode:
        pytest.skip("this machine mounts no tmpfs")
    try:
        install(old, home)
        large = write_built(
            tmp_path / "large" / "pytorch-fsdp", [TOP], version="2.13", **{"references/guide-long.md": "x" * 300_000}
        )
        with pytest.raises(SkillError, match=r"cannot be written \(No space left on device\)"):
            install(large, home)
        assert version_in(home) == "2.12"
        assert edited_files(place_in(home)) == []
        assert not place_in(home).with_name(STAGING).exists()
    finally:
        subprocess.run(["umount", home], check=True)


def test_where_two_folders_cannot_be_exchanged_in_one_step_a_kill_in_between_is_mended(old, new, home, monkeypatch):
    monkeypatch.setattr(folders, "_swap", lambda one, other: False)
    install(old, home)
    install(new, home)
    assert version_in(home) == "2.13"
    staging = place_in(home).with_name(STAGING)
    staging.mkdir()
    place_in(home).rename(staging / "new-x-old")  # as after a kill between the two steps
    with locked(home):
        assert version_in(home) == "2.13"
    install(old, home)
    assert version_in(home) == "2.12"
    assert not staging.exists()


def test_this_machine_exchanges_in_one_step(tmp_path):
    if sys.platform not in ("linux", "darwin"):
        pytest.skip("the system has no call for it")
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    assert folders._swap(tmp_path / "a", tmp_path / "b")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]


def test_hermes_home_is_where_hermes_looks(monkeypatch, tmp_path):
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    assert hermes_home() == tmp_path
    monkeypatch.delenv("HERMES_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    if sys.platform != "win32":
        assert hermes_home() == tmp_path / ".hermes"


# kill -9

DRIVER = """
import sys
from pathlib import Path
from skill_builder.skill.install import carry_out, locked, plan_install
skill, home = map(Path, sys.argv[1:])
print("ready", flush=True)
sys.stdin.readline()
with locked(home):
    carry_out(plan_install(skill, home))
print("done", flush=True)
"""


def start(skill, home):
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, skill, home], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    process.stdin.write("go\n")
    process.stdin.flush()
    return process


def finish(process):
    process.communicate()
    return process.returncode


def large(folder, version):
    """A skill with as many files as a real one."""
    guides = {f"references/guide-{n:02}.md": f"# Guide {n}\n\n{version} {'x ' * 8000}\n" for n in range(40)}
    return write_built(folder / "pytorch-fsdp", [TOP, SHARD], version=version, **guides)


def test_a_killed_install_leaves_one_whole_skill_and_the_next_one_works(tmp_path, home):
    skills = [large(tmp_path / version, version) for version in ("2.12", "2.13")]
    install(skills[0], home)
    process, started = start(skills[1], home), time.monotonic()
    assert process.stdout.readline() == "done\n"
    duration = time.monotonic() - started
    assert finish(process) == 0
    chance = random.Random(8)
    outcomes = []
    for number in range(KILLS):
        before = version_in(home)
        wanted = skills[0] if before == "2.13" else skills[1]
        edit = f"edit {number}\n"
        (place_in(home) / "SKILL.md").write_text(edit, encoding="utf-8")
        process = start(wanted, home)
        time.sleep(chance.uniform(0, duration))
        process.kill()
        finish(process)
        after = version_in(home)
        edited = edited_files(place_in(home))
        kept = {path.read_text("utf-8") for path in (home / KEPT).glob("*/SKILL.md")} if (home / KEPT).exists() else ()
        assert (after, edited) in ((before, ["SKILL.md"]), (load_manifest(wanted)["documentation"], []))
        assert edited or edit in kept
        assert same_name(home / "skills", place_in(home)) == []
        outcomes.append("old" if after == before else "new")
    print(f"{KILLS} kills of install: {outcomes.count('old')} old, {outcomes.count('new')} new, none damaged")
    for skill in skills:
        install(skill, home)
        assert version_in(home) == load_manifest(skill)["documentation"]
    assert not place_in(home).with_name(STAGING).exists()
    assert not list((home / KEPT).glob(".new-*"))


def test_two_installs_at_once_both_end_and_the_skill_is_whole(tmp_path, home):
    skills = [large(tmp_path / version, version) for version in ("2.12", "2.13")]
    processes = [start(skill, home) for skill in skills * 2]
    assert [finish(process) for process in processes] == [0] * 4
    assert edited_files(place_in(home)) == []
    assert version_in(home) in ("2.12", "2.13")


# The commands


def run(*arguments, **environment):
    command = [str(Path(sys.executable).with_name("fsdp-skill")), *map(str, arguments)]
    settings = {**os.environ, "PATH": "", **{name: str(value) for name, value in environment.items()}}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=settings)


def test_install_and_uninstall_as_a_person_calls_them(old, new, home):
    place = place_in(home)
    dry = run("install", old, "--dry-run", HERMES_HOME=home)
    assert (dry.returncode, dry.stdout) == (0, f"{place}: would be installed\n"), dry.stderr
    assert not home.exists()
    assert run("install", old, HERMES_HOME=home).stdout == f"{place}: installed\n"
    assert run("install", old, HERMES_HOME=home).stdout == f"{place}: up to date\n"
    (place / "SKILL.md").write_text("mine\n", encoding="utf-8")
    done = run("install", new, "--home", home)
    assert done.returncode == 0
    notes = done.stderr.splitlines()
    assert notes[0] == f"note: {place / 'SKILL.md'} had been changed since it was installed"
    assert notes[1].startswith(f"note: kept in {home / KEPT / 'pytorch-fsdp-'}")
    assert run("uninstall", "--home", home, "--dry-run").stdout == f"{place}: would be removed\n"
    assert run("uninstall", "--home", home).stdout == f"{place}: removed\n"
    again = run("uninstall", "--home", home)
    assert again.returncode == 1
    assert "no skill is installed there" in again.stderr


def test_an_invalid_skill_is_not_installed(new, home):
    (new / "references/extra.md").write_text("x\n", encoding="utf-8")
    done = run("install", new, "--home", home)
    assert done.returncode == 1
    assert "is not named in SKILL.md" in done.stderr
    assert not home.exists()


def test_the_message_about_another_skill_names_it_and_the_option(new, home):
    other = other_skill(home / "skills" / "mine" / "pytorch-fsdp")
    done = run("install", new, "--home", home)
    assert done.returncode == 1
    assert done.stderr.startswith(f"fsdp-skill: {other}: ")
    assert "--replace" in done.stderr
    replaced = run("install", new, "--home", home, "--replace")
    assert replaced.returncode == 0
    assert f"note: {other} replaced\n" in replaced.stderr
    assert json.loads((place_in(home) / "manifest.json").read_text("utf-8"))["documentation"] == "2.13"
    assert everything_but_the_lock(other.parent) == []

"""A build that is killed, or meets another one, a full disk or a folder that it may not write: the skill is whole."""

import os
import random
import re
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from skill_builder.build import BuildRequest, build_skill
from skill_builder.errors import SkillError
from skill_builder.scope import SCOPE_FILE
from skill_builder.skill.assemble import read_manifest
from tests.odd_site import QUICK, ROOMY, Site, article, serving

KILLS = int(os.environ.get("KILLS", "2"))
"""How often a build is killed; more for a figure worth reporting."""
FSDP = "/docs/stable/fsdp.html"
COMMAND = Path(sys.executable).with_name("fsdp-skill")


@pytest.fixture
def site():
    return Site.of(fsdp=["torch.distributed.fsdp.f"], distributed=["torch.distributed.d"])


@pytest.fixture
def url(site):
    with serving(site) as url:
        yield url


@pytest.fixture
def scope(tmp_path):
    file = tmp_path / "scope.yaml"
    file.write_text(
        re.sub(r"^(  (?:skill|index|guides|scripts)): \d+$", r"\1: 2000", SCOPE_FILE.read_text(), flags=re.M)
    )
    return file


@pytest.fixture
def out(tmp_path):
    (tmp_path / "dist").mkdir()
    return tmp_path / "dist" / "pytorch-fsdp"


def start(url, scope, out, **settings):
    command = [COMMAND, "build", "--source", "site", "--url", url, "--scope", scope, "--out", out]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True, **settings
    )


def finish(process):
    output, _ = process.communicate(timeout=240)
    return process.returncode, output


def pages(out):
    """The hashes of the pages of a skill that is whole."""
    built = read_manifest(out)
    assert built is not None
    assert built.is_whole(out)
    return built.manifest.pages


def processes_of(group):
    """The processes of a group that are alive."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = file.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(its_group) == group and state != "Z":
            found.append(file.parent.name)
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
@pytest.mark.timeout(60 * KILLS + 300)
def test_a_build_that_is_killed_leaves_the_old_skill_or_the_new_one(site, url, scope, out):
    """Every other kill comes while the skill is written, which takes a hundredth of the time."""
    chance = random.Random(8)
    status, output = finish(start(url, scope, out))
    assert status == 0, output
    started = time.monotonic()
    site.answers[FSDP] = article("fsdp", "torch.distributed.fsdp.f", text="Text 0.")
    assert finish(start(url, scope, out))[0] == 0
    whole = time.monotonic() - started
    found = {"old": 0, "new": 0, "ended before": 0}
    for number in range(1, KILLS + 1):
        old = pages(out)
        site.answers[FSDP] = article("fsdp", "torch.distributed.fsdp.f", text=f"Text {number}.")
        process = start(url, scope, out)
        if number % 2:
            time.sleep(chance.uniform(0.0, whole))
        else:
            until_it_writes(process, out)
            time.sleep(chance.uniform(0.0, 0.03))
        ended = process.poll() is not None
        process.kill()
        process.communicate()
        now = pages(out)
        found["ended before" if ended else "old" if now == old else "new"] += 1
        assert now == old or set(now) == set(old)
        wait_for_the_end_of(process.pid)
        status, output = finish(start(url, scope, out))
        assert status == 0, output
        assert pages(out) != old
        assert [entry.name for entry in out.parent.iterdir()] == [out.name]
    print(f"{KILLS} kills: {found}")


def until_it_writes(process, out):
    """Files appear in the folder beside the skill's."""
    while process.poll() is None and not any(map(has_files, out.parent.glob(f".{out.name}-*"))):
        time.sleep(0.001)


def has_files(folder):
    try:
        return any(folder.iterdir())
    except FileNotFoundError:  # A build also tries whether it may write there.
        return False


def wait_for_the_end_of(group):
    """The processes that a killed one started end by themselves."""
    for _ in range(200):
        if not processes_of(group):
            return
        time.sleep(0.05)
    raise AssertionError(f"still running: {processes_of(group)}")


def test_two_builds_of_a_folder_at_once_give_one_of_their_skills(site, url, scope, out):
    builds = [start(url, scope, out) for _ in range(2)]
    assert [finish(build)[0] for build in builds] == [0, 0]
    assert len(pages(out)) == 2
    assert [entry.name for entry in out.parent.iterdir()] == [out.name]


def build(out, url):
    return build_skill(BuildRequest(ROOMY, out, source="site", url=url, manners=QUICK))


@contextmanager
def small_disk(place, kib):
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", place], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", place], check=True)


def test_a_full_disk_leaves_the_old_skill(site, url, tmp_path):
    with small_disk(tmp_path / "disk", 4096):
        out = tmp_path / "disk" / "pytorch-fsdp"
        old = build(out, url).manifest.pages
        room = shutil.disk_usage(tmp_path / "disk").free
        (tmp_path / "disk" / "filler").write_bytes(b"x" * (room - 100_000))
        site.answers[FSDP] = article("fsdp", "torch.distributed.fsdp.f", text="New.")
        with pytest.raises(SkillError, match=r"cannot be written \(No space left on device\); free some space"):
            build(out, url)
        assert pages(out) == old
        assert sorted(entry.name for entry in out.parent.iterdir()) == ["filler", out.name]
        (tmp_path / "disk" / "filler").unlink()
        assert build(out, url).changed
        assert pages(out) != old


def test_a_full_disk_for_the_cache_stops_nothing(url, out, tmp_path, monkeypatch):
    with small_disk(tmp_path / "disk", 4):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "disk"))
        build(out, url)
    assert len(pages(out)) == 2


AS_NOBODY = """
import os, sys
from pathlib import Path
from skill_builder.errors import SkillError
from skill_builder.skill.assemble import write_skill
os.setgid(65534); os.setuid(65534)
try:
    write_skill(Path(sys.argv[1]), {"SKILL.md": b"new", "manifest.json": b"{}"})
except SkillError as error:
    print(error)
"""


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become nobody")
@pytest.mark.parametrize("mode", [0o555, 0o000])
def test_a_folder_that_may_not_be_written_leaves_the_old_skill(url, out, mode):
    old = build(out, url).manifest.pages
    for folder in [*out.parents][:-1]:
        if folder.stat().st_mode & 0o5 != 0o5:
            folder.chmod(folder.stat().st_mode | 0o5)
    out.parent.chmod(mode)
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, out],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[1],
    )
    out.parent.chmod(0o755)
    assert "Permission denied); name another folder" in done.stdout, done.stderr
    assert pages(out) == old


def test_what_a_killed_build_moved_aside_comes_back(url, out):
    """Where the system cannot exchange two folders in one step."""
    old = build(out, url).manifest.pages
    out.rename(out.with_name(f".{out.name}-abc-old"))
    out.with_name(f".{out.name}-abc").mkdir()
    build(out, url)
    assert pages(out) == old
    assert [entry.name for entry in out.parent.iterdir()] == [out.name]

"""Packing a built skill."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from io import BytesIO
from pathlib import Path

import pytest

from skill_builder.errors import InvalidSkill, NotASkill, SkillError
from skill_builder.skill.frontmatter import FORMATS, TARGETS, split
from skill_builder.skill.manifest import edited_files, is_inside
from skill_builder.skill.publish import package, require_valid, write_package
from skill_builder.skill.validate import validate
from tests.built_skills import documented, heading, write_built

SECTIONS = [
    heading("FSDP2", "Fully sharded data parallelism, for each parameter on its own."),
    documented("torch.distributed.fsdp.fully_shard", "def fully_shard(module): ...", "Shards a module."),
]


@pytest.fixture
def skill(tmp_path):
    return write_built(tmp_path / "pytorch-fsdp", SECTIONS)


def run(*arguments):
    command = [str(Path(sys.executable).with_name("fsdp-skill")), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PATH": ""})


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("form", FORMATS)
def test_the_same_skill_gives_the_same_bytes(skill, tmp_path, target, form):
    copy = shutil.copytree(skill, tmp_path / "copy" / skill.name)
    for path in copy.rglob("*"):
        os.utime(path, (time.time() + 100_000,) * 2)
    assert package(skill, target, form) == package(copy, target, form)


@pytest.mark.parametrize("form", FORMATS)
def test_the_checksums_are_those_that_sha256sum_checks(skill, tmp_path, form):
    write_package(tmp_path / "out", package(skill, "hermes", form))
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path / "out", check=True)
    listed = [line.split("  ")[1] for line in (tmp_path / "out/SHA256SUMS").read_text("utf-8").splitlines()]
    assert sorted([*listed, "SHA256SUMS"]) == sorted(contents(tmp_path / "out"))


def test_a_folder_for_hermes_is_the_skill_byte_for_byte_but_for_the_rendering(skill, tmp_path):
    write_package(tmp_path / "out", package(skill, "hermes", "dir"))
    packed = tmp_path / "out" / skill.name
    assert contents(packed).keys() == contents(skill).keys()
    assert {n: d for n, d in contents(packed).items() if n not in ("manifest.json", "SKILL.md")} == {
        n: d for n, d in contents(skill).items() if n not in ("manifest.json", "SKILL.md")
    }
    assert edited_files(packed) == []


def test_a_folder_for_other_agents_has_their_frontmatter_and_a_manifest_that_fits(skill, tmp_path):
    write_package(tmp_path / "out", package(skill, "agentskills", "dir"))
    packed = tmp_path / "out" / skill.name
    fields, _ = split((packed / "SKILL.md").read_text("utf-8"))
    assert set(fields) == {"name", "description", "metadata"}
    assert edited_files(packed) == []
    assert [finding for finding in validate(packed) if finding.severity == "error"] == []


def test_an_archive_unpacks_to_the_folder_with_scripts_executable(skill, tmp_path):
    archived, folder = (package(skill, "hermes", form) for form in ("zip", "dir"))
    assert sorted(archived) == ["SHA256SUMS", "pytorch-fsdp-0.1.0-hermes.zip"]
    with zipfile.ZipFile(BytesIO(archived["pytorch-fsdp-0.1.0-hermes.zip"])) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == {
            name: data for name, data in folder.items() if name != "SHA256SUMS"
        }
        modes = {entry.filename: oct(entry.external_attr >> 16) for entry in archive.infolist()}
    assert modes["pytorch-fsdp/scripts/search_docs.py"] == "0o100755"
    assert modes["pytorch-fsdp/SKILL.md"] == "0o100644"


def test_a_well_known_tree_lists_every_file(skill):
    files = package(skill, "hermes", "well-known")
    (entry,) = json.loads(files[".well-known/skills/index.json"])["skills"]
    folder = ".well-known/skills/pytorch-fsdp/"
    assert entry["name"] == "pytorch-fsdp"
    assert entry["files"] == sorted(name.removeprefix(folder) for name in files if name.startswith(folder))


def test_a_package_takes_the_place_of_the_one_before_and_of_nothing_else(skill, tmp_path):
    out = tmp_path / "out"
    write_package(out, package(skill, "hermes", "zip"))
    write_package(out, package(skill, "hermes", "dir"))
    assert not list(out.glob("*.zip"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "x").write_text("x", encoding="utf-8")
    with pytest.raises(NotASkill, match="is not what fsdp-skill package wrote; name another folder with --out"):
        write_package(tmp_path / "mine", {})
    assert contents(tmp_path / "mine") == {"x": b"x"}


def test_what_lies_beside_the_skills_files_is_not_packed(skill):
    (skill / "scripts" / "__pycache__").mkdir()
    (skill / "scripts" / "__pycache__" / "x.pyc").write_bytes(b"x")
    (skill / "notes.txt").write_text("mine", encoding="utf-8")
    assert not [name for name in package(skill, "hermes", "dir") if "pyc" in name or "notes" in name]


def test_a_file_that_is_not_as_it_was_built_is_named(skill):
    (skill / "SKILL.md").write_text("x", encoding="utf-8")
    with pytest.raises(SkillError, match=r"SKILL\.md: is not as it was built; change its source"):
        package(skill, "hermes", "dir")


def test_a_file_that_is_missing_is_named(skill):
    (skill / "references/docs-fsdp2.md").unlink()
    with pytest.raises(SkillError, match=r"docs-fsdp2\.md: cannot be read"):
        package(skill, "hermes", "dir")


@pytest.mark.parametrize("path", ["../secret", "/etc/hostname", "a/../../b", "c:\\x", "..\\x", "", "a\0b"])
def test_a_manifest_cannot_name_a_file_outside_the_skill(skill, path):
    manifest = json.loads((skill / "manifest.json").read_text("utf-8"))
    manifest["files"][path] = hashlib.sha256(b"x").hexdigest()
    (skill / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    (skill.parent / "secret").write_bytes(b"x")
    assert not is_inside(path)
    with pytest.raises(SkillError, match="outside the skill"):
        package(skill, "hermes", "dir")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"files": 3}', '{"files": {"SKILL.md": 3}}', "[" * 100_000])
def test_a_damaged_manifest_is_said(skill, text):
    (skill / "manifest.json").write_text(text, encoding="utf-8")
    with pytest.raises(SkillError, match=r"manifest\.json: (is damaged|lists no files); build"):
        package(skill, "hermes", "dir")


def test_a_skill_of_another_name_is_not_packed(tmp_path):
    skill = write_built(tmp_path / "x", SECTIONS, **{"SKILL.md": "---\nname: other\ndescription: FSDP\n---\n"})
    with pytest.raises(NotASkill, match="is not the skill pytorch-fsdp"):
        package(skill, "hermes", "dir")


def test_an_invalid_skill_is_refused_with_its_first_error(skill, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    require_valid(skill)
    (skill / "references/extra.md").write_text("x\n", encoding="utf-8")
    with pytest.raises(InvalidSkill, match=r"references/extra\.md:0: is not named in SKILL\.md.*; write"):
        require_valid(skill)


def test_the_command_packs_and_a_dry_run_writes_nothing(skill, tmp_path):
    out = tmp_path / "out"
    dry = run("package", skill, "--out", out, "--dry-run")
    assert (dry.returncode, dry.stdout) == (0, f"{out}: 2 files, {size_of(skill)} KiB would be written\n"), dry.stderr
    assert not out.exists()
    done = run("package", skill, "--out", out)
    assert (done.returncode, done.stdout) == (0, f"{out}: 2 files, {size_of(skill)} KiB\n")
    assert (out / "pytorch-fsdp-0.1.0-hermes.zip").is_file()


def size_of(skill):
    return f"{sum(map(len, package(skill, 'hermes', 'zip').values())) / 1024:.0f}"


def test_the_command_refuses_an_invalid_skill(skill, tmp_path):
    (skill / "references/extra.md").write_text("x\n", encoding="utf-8")
    done = run("package", skill, "--out", tmp_path / "out")
    assert done.returncode == 1
    assert "is not named in SKILL.md" in done.stderr
    assert not (tmp_path / "out").exists()

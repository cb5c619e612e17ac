"""Assembling: the folder is exchanged whole, or not at all."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from skill_builder.errors import NotASkill, OverBudget, SkillError
from skill_builder.scope import load_scope
from skill_builder.skill import assemble
from skill_builder.skill.assemble import (
    Manifest,
    check_budget,
    check_destination,
    read_hand_written,
    sources,
    with_references,
    write_skill,
)

SCOPE = load_scope()
OLD = {"SKILL.md": b"old", "manifest.json": b"{}", "scripts/a.py": b"old"}
NEW = {"SKILL.md": b"new", "manifest.json": b"{}", "references/docs-a.md": b"new"}


def tree(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_skill_takes_the_place_of_the_one_before(tmp_path):
    out = tmp_path / "made" / "pytorch-fsdp"
    write_skill(out, OLD)
    assert tree(out) == OLD
    assert os.access(out / "scripts/a.py", os.X_OK)
    write_skill(out, NEW)
    assert tree(out) == NEW
    assert list(out.parent.iterdir()) == [out]


def test_an_empty_folder_may_be_used_and_another_may_not(tmp_path):
    (tmp_path / "empty").mkdir()
    write_skill(tmp_path / "empty", NEW)
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("years of work", encoding="utf-8")
    with pytest.raises(NotASkill, match="it exists and is not a skill that fsdp-skill built; name another folder"):
        write_skill(other, NEW)
    assert tree(other) == {"thesis.txt": b"years of work"}
    with pytest.raises(NotASkill):
        check_destination(other / "thesis.txt")


def test_a_place_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(SkillError, match=r"file: cannot be written \(File exists\)"):
        check_destination(tmp_path / "file" / "skill")


@pytest.mark.skipif(not hasattr(os, "seteuid") or os.getuid() != 0, reason="needs root, to act as somebody else")
def test_a_folder_without_write_permission_is_named():
    os.seteuid(65534)
    try:
        with pytest.raises(SkillError, match=r"/usr: cannot be written \(Permission denied\); name another folder"):
            check_destination(Path("/usr/pytorch-fsdp"))
    finally:
        os.seteuid(0)


def test_what_fails_while_writing_leaves_the_skill_as_it_was(tmp_path):
    out = tmp_path / "pytorch-fsdp"
    write_skill(out, OLD)
    too_long = {**NEW, "references/" + "x" * 300: b""}
    with pytest.raises(SkillError, match=r"pytorch-fsdp: cannot be written \(File name too long\)"):
        write_skill(out, too_long)
    assert tree(out) == OLD
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_leaves_the_skill_as_it_was(tmp_path, monkeypatch):
    out = tmp_path / "pytorch-fsdp"
    write_skill(out, OLD)
    real = Path.write_bytes

    def onto_a_full_disk(self, data):
        return real(Path("/dev/full") if self.name == "docs-a.md" else self, data)

    monkeypatch.setattr(Path, "write_bytes", onto_a_full_disk)
    with pytest.raises(SkillError, match=r"\(No space left on device\); free some space"):
        write_skill(out, NEW)
    monkeypatch.undo()
    assert tree(out) == OLD
    assert list(tmp_path.iterdir()) == [out]


def test_each_share_has_its_limit():
    budget = replace(SCOPE.budget, docs=1, index=1, guides=1, scripts=1, rest=1, skill=3)
    for path, share in {
        "references/docs-a.md": "docs",
        "references/index.json": "index",
        "references/guide-a.md": "guides",
        "scripts/a.py": "scripts",
        "assets/a.txt": "rest",
        "SKILL.md": "rest",
    }.items():
        with pytest.raises(OverBudget, match=f"the skill's share '{share}': 2 KiB, and the budget has 1"):
            check_budget({path: b"x" * 2048}, budget)
    files = dict.fromkeys(("references/docs-a.md", "references/index.json", "scripts/a.py", "assets/a"), b"x" * 1000)
    with pytest.raises(OverBudget, match="'skill'"):
        check_budget(files, budget)
    check_budget(files, SCOPE.budget)


def test_skill_md_gets_a_table_of_the_references_that_are_there():
    source = "# T\n\n## Official documentation\n\nNone here.\n\n## After\n\nText.\n"
    assert with_references(source, {"docs-rpc.md": "", "docs-fsdp2.md": ""}, SCOPE, "2.13") == (
        "# T\n\n## Official documentation\n\n"
        "The pages of PyTorch 2.13, each section with its official URL.\n\n"
        "| what is in it | read |\n| --- | --- |\n"
        "| fully_shard, FSDPModule and its methods, offload policies, FSDP2 against FSDP1 | "
        "`references/docs-fsdp2.md` |\n"
        "| RPC, RRef, remote module, distributed autograd | `references/docs-rpc.md` |\n"
        "\n## After\n\nText.\n"
    )
    with pytest.raises(SkillError, match="the heading '## Official documentation' is missing"):
        with_references("# T\n", {}, SCOPE, "2.13")


def test_hand_written_files_are_found_wherever_they_are(tmp_path):
    found = read_hand_written(sources())
    assert "scripts/search_docs.py" in found.scripts
    assert "references/guide-fsdp2.md" in found.guides
    assert "assets/pytorch-license.txt" in found.assets
    with pytest.raises(SkillError, match=r"SKILL\.md: cannot be read \(No such file or directory\)"):
        read_hand_written(tmp_path)


def test_only_the_manifest_holds_the_time():
    manifest = Manifest("site", "asked for", "u", "2.13", {}, {}, {}, {}, (), ())
    first, second = (json.loads(manifest.to_json({"a": b"x"})) for _ in range(2))
    assert first.pop("built")[:3] == "202"
    second.pop("built")
    assert first == second
    assert first["files"] == {"a": "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"}
    assert assemble.SKILL_NAME == "pytorch-fsdp"

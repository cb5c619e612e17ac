"""The command as a person or a program calls it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from skill_builder.scope import SCOPE_FILE
from tests.documentation_site import serve
from tests.odd_site import Site, article, serving

COMMAND = [str(Path(sys.executable).with_name("fsdp-skill"))]


def run(*arguments, cwd=None, **settings):
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=240, check=False, cwd=cwd, **settings
    )


def test_build_prints_what_it_built_and_says_what_it_does_on_stderr(site_url, tmp_path):
    done = run("build", "--source", "site", "--url", site_url, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"dist/pytorch-fsdp: from {site_url} (asked for), PyTorch ")
    assert "coverage: " in done.stdout
    assert done.stderr.splitlines()[:3] == ["fetching ...", "parsing ...", "indexing ..."]
    assert (tmp_path / "dist/pytorch-fsdp/SKILL.md").is_file()

    found = run("search", "--limit", "1", "--", "fully_shard", cwd=tmp_path)
    assert found.returncode == 0
    assert "references/docs-fsdp2.md" in found.stdout

    checked = run("validate", cwd=tmp_path, env={**os.environ, "PATH": ""})
    assert checked.returncode == 0, checked.stdout
    assert checked.stderr.startswith("dist/pytorch-fsdp: 0 errors")


def test_build_as_json_is_the_manifest(site_url, tmp_path):
    done = run("build", "--source", "site", "--url", site_url, "--json", "--out", str(tmp_path / "pytorch-fsdp"))
    assert json.loads(done.stdout) == json.loads((tmp_path / "pytorch-fsdp/manifest.json").read_text("utf-8"))


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["build", "--source", "moon"], 2, "'moon' is not one of"),
        (["build", "--url", "docs.pytorch.org"], 2, "is not an http(s) address"),
        (["build", "--scope", "none.yaml"], 1, "fsdp-skill: none.yaml: cannot be read (No such file or directory); "),
        (["build", "--out", "taken"], 1, "fsdp-skill: taken: it exists and is not a skill that fsdp-skill built; "),
        (["validate", "nowhere"], 1, "fsdp-skill: nowhere: "),
        (["search", "--", "x"], 2, "install the skill again, or rebuild it with fsdp-skill build"),
        (["fly"], 2, "No such command 'fly'"),
        (["build", "--docs-version", "../x"], 2, "'../x' is not stable, main or a release"),
        (["build", "--allow-missing", "-1"], 2, "-1 is not in the range"),
        (["check", "nowhere"], 1, "nowhere/manifest.json: is missing, damaged or of another builder; "),
        (["build", "--source", "site", "--offline"], 1, "no copy of it was kept; build once without --offline"),
    ],
)
def test_what_is_wrong_is_one_line_and_a_status(tmp_path, arguments, status, message):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "x").write_text("", encoding="utf-8")
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == status
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    if status == 1:
        assert done.stderr.count("\n") == 1


def test_a_site_that_is_down_names_both_remedies(tmp_path):
    with serve(tmp_path) as url:
        pass
    empty = tmp_path / "no-torch"
    empty.mkdir()
    done = run("build", "--source", "site", "--url", url, cwd=tmp_path)
    assert done.returncode == 1
    assert "no answer (cannot connect); try again later, or name a mirror with --url" in done.stderr


def test_validate_prints_file_line_rule_and_remedy(built_skill, tmp_path):
    copy = tmp_path / "pytorch-fsdp"
    subprocess.run(["cp", "-r", str(built_skill), str(copy)], check=True)
    (copy / "references/extra.md").write_text("x\n", encoding="utf-8")
    done = run("validate", str(copy), env={**os.environ, "PATH": ""})
    assert done.returncode == 1
    assert "references/extra.md:0: error [unnamed] is not named in SKILL.md" in done.stdout
    as_json = run("validate", str(copy), "--json", env={**os.environ, "PATH": ""})
    finding = next(finding for finding in json.loads(as_json.stdout) if finding["rule"] == "unnamed")
    assert list(finding) == ["file", "line", "rule", "severity", "problem", "remedy"]
    assert "references/extra.md" in finding["remedy"]


def test_an_interrupt_leaves_nothing_half_written(site_url, tmp_path):
    build = subprocess.Popen(
        [*COMMAND, "build", "--source", "site", "--url", site_url],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert build.stderr.readline() == "fetching ...\n"
    time.sleep(0.2)
    os.killpg(build.pid, signal.SIGINT)
    _, errors = build.communicate(timeout=60)
    assert build.returncode != 0
    assert "Traceback" not in errors
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.fixture
def roomy(tmp_path):
    """A scope file whose limits leave room for guides of any size."""
    text = re.sub(r"^(  (?:skill|index|guides|scripts)): \d+$", r"\1: 2000", SCOPE_FILE.read_text("utf-8"), flags=re.M)
    (tmp_path / "scope.yaml").write_text(text, encoding="utf-8")
    return tmp_path / "scope.yaml"


def test_building_again_checking_and_clearing(tmp_path, roomy):
    site = Site.of(fsdp=["torch.distributed.fsdp.f"])
    site.answers |= {path.replace("stable", "2.9"): page for path, page in site.answers.items()}
    with serving(site) as url:
        arguments = ["build", "--source", "site", "--url", url, "--scope", str(roomy), "--workers", "1"]
        assert run(*arguments, cwd=tmp_path).returncode == 0
        again = run(*arguments, cwd=tmp_path)
        assert again.stdout == "dist/pytorch-fsdp: nothing has changed; 1 pages, as they were\n"
        assert run("check", cwd=tmp_path).returncode == 0
        assert run(*arguments, "--docs-version", "2.9", cwd=tmp_path).returncode == 0
        assert (tmp_path / "dist/2.9/pytorch-fsdp/SKILL.md").is_file()
        site.answers["/docs/stable/fsdp.html"] = article("fsdp", "torch.distributed.fsdp.f", text="New.")
        checked = run("check", cwd=tmp_path)
        assert checked.returncode == 3
        assert checked.stdout == "changed: https://docs.pytorch.org/docs/stable/fsdp.html\n"
        assert json.loads(run("check", "--json", cwd=tmp_path).stdout)["gone"] == []
    offline = run(*arguments, "--offline", cwd=tmp_path)
    assert offline.stdout.startswith("dist/pytorch-fsdp: from http")
    assert run("cache", "clear").stdout.endswith(" KiB removed\n")
    assert run(*arguments, "--offline", cwd=tmp_path).returncode == 1

"""Every fenced block of SKILL.md and the guides that has a language is what it says it is, and works."""

import json
import os
import shlex
import subprocess
import sys
from functools import lru_cache

import pytest
import yaml
from torch.distributed.run import get_args_parser

from tests.guides.blocks import GPU_MARK, ROOT, Block, blocks
from tests.guides.names import resolve, used

PYTHON = blocks("python")
pytestmark = pytest.mark.timeout(900)  # the first test of a runnable block waits for all of them


def of_place(given):
    return [pytest.param(block, id=block.place) for block in given]


@pytest.fixture(scope="session")
def outcomes(tmp_path_factory):
    """Place of a block -> what it printed if it failed; a block that ended well is not in it."""
    folder = tmp_path_factory.mktemp("blocks")
    paths = {}
    for number, block in enumerate(PYTHON):
        if not block.needs_gpus:
            kind = "ranks" if block.is_distributed else "alone"
            paths[block.place] = path = folder / f"{kind}-{number:03}.py"
            path.write_text("\n" * (block.line - 1) + block.text, "utf-8")  # a traceback names the guide's lines
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.guides.run_blocks", folder],
        check=False,
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return {
        place: path.with_suffix(".log").read_text() + done.stderr[-3000:]
        for place, path in paths.items()
        if not path.with_suffix(".ok").exists()
    }


@pytest.mark.parametrize("block", of_place(block for block in PYTHON if not block.needs_gpus))
def test_python_runs(block, outcomes):
    assert outcomes.get(block.place) is None


@pytest.mark.parametrize("block", of_place(block for block in PYTHON if block.needs_gpus))
def test_python_that_needs_gpus_compiles_and_its_names_resolve(block):
    compile(block.text, block.place, "exec", dont_inherit=True)
    for name in used(block.text):
        resolve(name)


@pytest.mark.parametrize("block", of_place(blocks("bash")))
def test_bash_parses(block):
    parsed = subprocess.run(["bash", "-n"], check=False, input=block.text, capture_output=True, text=True)
    assert parsed.stderr == ""


@pytest.mark.parametrize("block", of_place(blocks("bash")))
def test_bash_names_scripts_and_flags_that_exist(block):
    absent = []
    for command in commands(block.text):
        for tool, flags in tools_of(command):
            if not tool.startswith("torchrun") and not (ROOT / tool).is_file():
                absent.append(tool)
            else:
                assert set(flags) <= flags_of(tool), f"{block.place}: {tool}"
    if absent:
        pytest.skip(f"not there yet: {', '.join(absent)}")


@pytest.mark.parametrize("block", of_place(blocks("yaml")))
def test_yaml_parses(block):
    assert list(yaml.safe_load_all(block.text))


@pytest.mark.parametrize("block", of_place(blocks("json")))
def test_json_parses(block):
    json.loads(block.text)


def test_every_language_is_known():
    known = {"python", "bash", "yaml", "json", "text"}
    every = blocks(*known, "py", "sh", "shell", "console", "yml", "toml", "diff", "")
    assert {block.language for block in every} <= known


def test_a_block_knows_its_place_and_what_it_needs():
    assert Block("g.md", 7, "python", "x\n").place == "g.md:7"
    assert Block("g.md", 7, "python", f"{GPU_MARK}\nimport torch.distributed\n").needs_gpus


def test_flags_belong_to_the_program_before_them():
    line = 'A=1 torchrun --standalone --nproc-per-node=2 \\\n  "${HERMES_SKILL_DIR}/scripts/train.py" --steps 3 -- --no'
    assert [list(tools_of(command)) for command in commands(line)] == [
        [("torchrun", ["--standalone", "--nproc-per-node"]), ("scripts/train.py", ["--steps"])]
    ]


def commands(text):
    """The words of each command of a bash block."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            yield words


def tools_of(words):
    """(torchrun or a script of the skill, its flags) in the order in which they stand; what follows `--` is no flag."""
    found = []
    for word in words:
        path = next((word[word.index(f"{top}/") :] for top in ("scripts", "assets") if f"{top}/" in word), None)
        if word == "--" or word in ("|", "&&", ";"):
            found.append((None, []))
        elif path and not word.startswith("-"):
            found.append((path, []))
        elif word == "torchrun":
            found.append((word, []))
        elif word.startswith("--") and found:
            found[-1][1].append(word.partition("=")[0])
    return [each for each in found if each[0]]


@lru_cache
def flags_of(tool):
    """The flags of torchrun, or of a script as its --help prints them."""
    if tool == "torchrun":
        return set(get_args_parser()._option_string_actions)
    if not tool.endswith(".py"):
        return set()
    shown = subprocess.run([sys.executable, ROOT / tool, "--help"], capture_output=True, text=True, check=True)
    return {word.strip(",=[]()") for word in shown.stdout.replace("=", " ").split() if word.startswith(("--", "[--"))}

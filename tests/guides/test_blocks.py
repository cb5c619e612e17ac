"""Every fenced block of SKILL.md and the guides that has a language is what it says it is, and works."""

import json
import re
import subprocess
import sys
from functools import lru_cache

import pytest
import yaml
from torch.distributed.run import get_args_parser

from tests.guides.blocks import GPU_MARK, ROOT, Block, blocks
from tests.guides.names import resolve, used
from tests.guides.run_blocks import outcomes

PYTHON = blocks("python")
_COMMENT = re.compile(r"(^|\s)#.*")
_SHIPPED = re.compile(r"\b(scripts|assets)/[\w.-]+")
_FLAG = re.compile(r"--[a-z][\w-]*")
pytestmark = pytest.mark.timeout(900)  # the first test of a runnable block waits for all of them


def of_place(given):
    return [pytest.param(block, id=block.place) for block in given]


@pytest.fixture(scope="session")
def failures(tmp_path_factory):
    """Place of a block -> what it printed if it failed; a block that ended well is not in it."""
    runnable = [block for block in PYTHON if not block.needs_gpus]
    names = {f"{'ranks' if block.is_distributed else 'alone'}-{n:03}": block for n, block in enumerate(runnable)}
    # A traceback names the guide's lines.
    programs = {name: "\n" * (block.line - 1) + block.text for name, block in names.items()}
    found = outcomes(tmp_path_factory.mktemp("blocks"), programs)
    return {names[name].place: printed for name, (ended_well, printed) in found.items() if not ended_well}


@pytest.mark.parametrize("block", of_place(block for block in PYTHON if not block.needs_gpus))
def test_python_runs(block, failures):
    assert failures.get(block.place) is None


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
    tools = [tool for words in commands(block.text) for tool in tools_of(words)]
    absent = [path for path, _ in tools if path != "torchrun" and not (ROOT / path).is_file()]
    unknown = {path: set(flags) - flags_of(path) for path, flags in tools if flags and path not in absent}
    assert {path: flags for path, flags in unknown.items() if flags} == {}
    if absent:
        pytest.skip(f"not there yet: {', '.join(absent)}")


@pytest.mark.parametrize("block", of_place(blocks("yaml")))
def test_yaml_parses(block):
    assert list(yaml.safe_load_all(block.text))


@pytest.mark.parametrize("block", of_place(blocks("json")))
def test_json_parses(block):
    json.loads(block.text)


def test_every_language_is_known():
    known = {
        "python",
        "bash",
        "yaml",
        "json",
        "text",
        "diff",
    }  # guide-lint.md has the last; its linter's tests run them
    every = blocks(*known, "py", "sh", "shell", "console", "yml", "toml", "")
    assert {block.language for block in every} <= known


def test_a_block_knows_its_place_and_what_it_needs():
    assert Block("g.md", 7, "python", "x\n").place == "g.md:7"
    assert Block("g.md", 7, "python", f"{GPU_MARK}\nimport torch.distributed\n").needs_gpus


def test_flags_belong_to_the_program_before_them():
    text = """
    A=1 torchrun --standalone --nproc-per-node=2 \\
        "${HERMES_SKILL_DIR}/scripts/train.py" --steps 3 -- --no  # --comment
    accelerate launch --config_file assets/fsdp.yaml --num_machines 2 scripts/train.py --seed 1
    """
    assert [list(tools_of(words)) for words in commands(text)] == [
        [("torchrun", ["--standalone", "--nproc-per-node"]), ("scripts/train.py", ["--steps"])],
        [("assets/fsdp.yaml", []), ("scripts/train.py", ["--seed"])],
    ]


def commands(text):
    """The words of each command of a bash block, without comments and quotes."""
    for line in text.replace("\\\n", " ").splitlines():
        words = [word.strip("\"'") for word in _COMMENT.sub("", line).split()]
        if words:
            yield words


def tools_of(words):
    """(torchrun or a file of the skill, its flags) in the order in which they stand.

    A configuration takes no flags; what follows `--` is none.
    """
    found, flags = [], []
    for word in words:
        path = _SHIPPED.search(word)
        if word == "torchrun" or (path and not word.startswith("-")):
            name, flags = path.group() if path else word, []
            takes_flags = not name.endswith((".yaml", ".yml", ".json"))
            found.append((name, flags if takes_flags else []))
        elif word in ("--", "|", "&&", ";"):
            flags = []
        elif word.startswith("--"):
            flags.append(word.partition("=")[0])
    return found


@lru_cache
def flags_of(tool):
    """The flags of torchrun, those in a Python script's --help, or those that a shell script's text has."""
    if tool == "torchrun":
        return set(get_args_parser()._option_string_actions)
    if tool.endswith(".py"):
        shown = subprocess.run([sys.executable, ROOT / tool, "--help"], capture_output=True, text=True, check=True)
        return set(_FLAG.findall(shown.stdout))
    return set(_FLAG.findall((ROOT / tool).read_text("utf-8")))

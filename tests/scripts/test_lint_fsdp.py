"""The linter finds what is wrong in the bad files, at the right places, and nothing in the good ones."""

import ast
import importlib.util
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

from skill_builder.history import load_history

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "lint_fsdp.py"
GUIDE = ROOT / "references" / "guide-lint.md"
CASES = ROOT / "tests" / "cases" / "lint"
MAX_BYTES = 24_000
"""The linter's part of the 160 KiB for all scripts."""


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lint_fsdp", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


lint_fsdp = load()
CODES = sorted(lint_fsdp.RULES)
OPT_IN = {"FSDP009", "FSDP073"}


def lint(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-W", "error", SCRIPT, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def found(code: str, text: str) -> list[tuple[str, int]]:
    """Codes and lines, of the default rules and of the one that is asked for."""
    rules = lint_fsdp.chosen("", (2, 6) if code == "FSDP082" else None)
    rules += lint_fsdp.chosen(code) if code in OPT_IN else []
    return sorted({(finding["code"], finding["line"]) for finding in lint_fsdp.check("x.py", text, rules)})


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "train.py"


# --- rules -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", CODES)
def test_bad_file_is_found_on_the_lines_it_names_and_for_nothing_else(code: str) -> None:
    text = (CASES / f"{code}-bad.txt").read_text()
    lines = re.match("# lines: (.+)", text)
    assert lines
    assert found(code, text) == [(code, int(line)) for line in lines[1].split()]


@pytest.mark.parametrize("code", CODES)
def test_good_file_is_clean(code: str) -> None:
    assert found(code, (CASES / f"{code}-good.txt").read_text()) == []


def test_there_are_at_least_30_rules_and_no_case_without_one() -> None:
    assert len(CODES) >= 30
    assert sorted({path.name.partition("-")[0] for path in CASES.iterdir()}) == CODES


def test_only_the_rules_that_judge_what_the_code_does_not_show_are_opt_in() -> None:
    assert {code for code, rule in lint_fsdp.RULES.items() if rule["level"] == "note"} == OPT_IN


def test_script_keeps_to_its_size() -> None:
    assert SCRIPT.stat().st_size <= MAX_BYTES


MODULES = {
    "import os": ["os"],
    "import torch": ["torch"],
    "import torch.distributed.checkpoint as dcp": ["dcp"],
    "from torch import nn": ["nn"],
    "from torch.distributed.algorithms.join import Join": ["Join"],
    "from torch.distributed.checkpoint.state_dict import *": ["StateDictOptions", "get_model_state_dict"],
    "from torch.distributed.fsdp import *": ["CPUOffloadPolicy", "MixedPrecisionPolicy", "fully_shard"],
    "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP": ["FSDP"],
    "from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler": ["ShardedGradScaler"],
    "from torch.nn.parallel import DistributedDataParallel as DDP": ["DDP"],
    "from torch.utils.data import *": ["DataLoader", "DistributedSampler"],
    "from transformers import AutoModelForCausalLM": ["AutoModelForCausalLM"],
}
"""What an example takes for granted, by the words in it."""


def program(example: str) -> str:
    """An example with its imports, between the start and the end of the process group."""
    words = set(re.findall(r"\w+", example))
    imports = [line.replace("*", name) for line, names in MODULES.items() for name in names if name in words]
    start = [] if "init_process_group" in words else ['dist.init_process_group("gloo")']
    end = [] if example.startswith("dist.init_process_group") else ["dist.destroy_process_group()"]
    return "\n".join(["import torch.distributed as dist", *imports, *start, example, *end])


@pytest.mark.parametrize("code", CODES)
def test_example_in_the_guide_shows_the_rule(code: str) -> None:
    example = re.search(rf"### {code} (\S+)\n[^#]*?```diff\n(.*?)```", GUIDE.read_text(), re.S)
    assert example
    assert example[1] == lint_fsdp.RULES[code]["name"]
    before, after = (
        "".join(line[1:] for line in example[2].splitlines(keepends=True) if line[0] in f" {sign}") for sign in "-+"
    )
    assert code in {each for each, _ in found(code, program(before))}
    assert code not in {each for each, _ in found(code, program(after))}


# --- names that rules know -------------------------------------------------------------------------------------


def facts() -> list[tuple[str, str, str, str]]:
    """(change, release, full name, successor) of each word in HISTORY."""
    short = {".": "torch.distributed.", "@": "torch.distributed.fsdp.FSDPModule."}
    rows = [line.split() for line in lint_fsdp.HISTORY.splitlines()]
    pairs = [(change, since, name.partition("=")) for change, since, *names in rows for name in names]
    return [
        (change, since, *(short.get(each[:1], each[:1]) + each[1:] for each in (name, successor)))
        for change, since, (name, _, successor) in pairs
    ]


@pytest.mark.parametrize(("change", "since", "name", "successor"), facts())
def test_history_of_torch_says_the_same_of_a_name(change: str, since: str, name: str, successor: str) -> None:
    history = load_history()
    path, _, parameter = name.rstrip(")").partition("(")
    known = history.object(path)
    assert known
    if change == "added":
        assert (known.parameters[parameter].since if parameter else known.since) == since
    elif change == "removed":
        assert known.removed == since
    else:
        assert known.deprecated and (known.deprecated.since or history.releases[0]) == since
        assert history.replacement(path) == successor
    assert not successor or not history.missing_in(successor, history.releases[-1])


def test_private_modules_that_are_mended_offer_the_same_names_as_the_public_ones() -> None:
    pytest.importorskip("torch")
    shared = re.compile(r"fully_shard|distribute_\w+|[A-Z]\w+")
    for private, public in (("_composable.fsdp", "fsdp"), ("_tensor", "tensor")):
        old, new = (importlib.import_module(f"torch.distributed.{name}") for name in (private, public))
        names = [name for name in vars(old) if shared.fullmatch(name)]
        assert names
        assert [name for name in names if getattr(old, name) is not getattr(new, name, None)] == []


def test_every_argument_and_method_of_fsdp1_has_an_answer() -> None:
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    import inspect

    parameters = set(inspect.signature(fsdp.FullyShardedDataParallel).parameters) - {"module"}
    classes = {"FullyShardedDataParallel", "MixedPrecision", "CPUOffload"}
    assert parameters <= set(lint_fsdp.REPLACED)
    assert all(hasattr(fsdp.FullyShardedDataParallel, name) for name in set(lint_fsdp.REPLACED) - parameters - classes)


# --- no false alarms -------------------------------------------------------------------------------------------


def test_our_own_scripts_are_clean() -> None:
    done = lint(ROOT / "scripts")
    assert (done.returncode, done.stdout) == (0, "")


def test_programs_in_our_documents_are_clean(tmp_path: Path) -> None:
    for document in (ROOT / "SKILL.md", *sorted((ROOT / "references").glob("guide-*.md"))):
        for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", document.read_text(), re.M | re.S)):
            (tmp_path / f"{document.stem}_{number}.py").write_text(block)
    assert any(tmp_path.iterdir())
    done = lint(tmp_path)
    assert (done.returncode, done.stdout) == (0, "")


NOT_WRONG = {
    "both sides send": """
        def share(value):
            if dist.get_rank() == 0:
                dist.broadcast(value, 0)
            else:
                dist.broadcast(value, 0)
        """,
    "the first rank goes ahead": """
        def first(rank):
            if rank not in [-1, 0]:
                dist.barrier()
            yield
            if rank == 0:
                dist.barrier()
        """,
    "only some ranks are in the group": """
        def share(value, group):
            if dist.get_rank() == 0:
                dist.broadcast(value, 0, group=group)
        """,
    "either way of sharding": """
        def clip(model, new):
            if new:
                fully_shard(model)
            else:
                model = FSDP(model, auto_wrap_policy=None)
            model.clip_grad_norm_(1.0)
        """,
    "the optimizer of the run that ends here": """
        def build(model, alone):
            if alone:
                return torch.optim.SGD(model.parameters())
            fully_shard(model)
            return torch.optim.SGD(model.parameters())
        """,
    "names in prose": """
        def about():
            '''Call dist.barrier() where get_rank() == 0, model.forward(x) or torch.cuda.amp.autocast().'''
            return "if rank == 0: import torch.distributed._tensor"
        """,
    "old torch is served too": """
        def load():
            try:
                from torch.distributed.fsdp import fully_shard
            except ImportError:
                from torch.distributed._composable.fsdp import fully_shard
            return fully_shard
        """,
    "a function of our own is called fully_shard": """
        from ours import fully_shard
        def build(model, optimizer):
            optimizer = torch.optim.SGD(model.parameters())
            fully_shard(model, cpu_offload=True)
            model.no_sync()
        """,
    "a method is called like a function that saves": """
        def save(model, path):
            dist.barrier()
        def run(model):
            if dist.get_rank() == 0:
                torch.save({}, "x")
        """,
}


@pytest.mark.parametrize("text", NOT_WRONG.values(), ids=NOT_WRONG)
def test_look_alike_is_not_reported(text: str) -> None:
    imports = (
        "import torch\nimport torch.distributed as dist\n"
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, fully_shard\n"
    )
    assert found("FSDP001", imports + textwrap.dedent(text)) == []


@pytest.mark.parametrize(
    "imports",
    [
        "from torch.distributed.fsdp import fully_shard as wrap_it",
        "import torch.distributed.fsdp as f",
        "import torch.distributed.fsdp",
        "from torch.distributed import fsdp as f",
        "from torch.distributed.fsdp._fully_shard import fully_shard as wrap_it",
    ],
)
def test_name_is_known_however_it_is_imported(imports: str) -> None:
    name = imports.rpartition(" as ")[2] if " as " in imports else "torch.distributed.fsdp"
    call = "wrap_it" if name == "wrap_it" else f"{name}.fully_shard"
    text = f"{imports}\ndef run(model, x):\n    {call}(model)\n    return model.forward(x)\n"
    assert found("FSDP004", text) == [("FSDP004", 4)]


def test_hang_in_a_function_that_one_rank_calls_is_found() -> None:
    text = (
        "import torch.distributed as dist\n"
        "def finish(value):\n    dist.all_reduce(value)\n"
        "def main(rank, value):\n    if rank == 0:\n        finish(value)\n"
    )
    assert found("FSDP030", text) == [("FSDP030", 3)]


# --- mending ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["FSDP004", "FSDP083"])
def test_fix_makes_the_good_file_out_of_the_bad_one(script: Path, code: str) -> None:
    script.write_text((CASES / f"{code}-bad.txt").read_text())
    done = lint("--fix", script)
    good = (CASES / f"{code}-good.txt").read_text()
    assert script.read_text().partition("\n")[2] == good.partition("\n")[2]
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("code", CODES)
def test_fix_leaves_python_and_a_second_one_leaves_everything(script: Path, code: str) -> None:
    script.write_text((CASES / f"{code}-bad.txt").read_text())
    lint("--fix", script)
    once = script.read_text()
    ast.parse(once)
    lint("--fix", script)
    assert script.read_text() == once


def test_fix_keeps_line_ends_and_everything_else_on_the_line(script: Path) -> None:
    before = (
        "from torch.distributed.fsdp import fully_shard\r\n"
        "def run(model, x):\r\n    fully_shard(model)\r\n    é = 'ü'; y = (model.forward(x),\r\n     x)  # ä"
    )
    script.write_bytes(before.encode())
    assert lint("--fix", script).returncode == 0
    assert script.read_bytes() == before.replace("model.forward(", "model(").encode()


def test_edit_that_would_break_the_syntax_is_not_made() -> None:
    assert lint_fsdp.mend("f(1)\n", [{"line": 1, "last": 1, "about": "", "edit": r"\( => (("}]) == "f(1)\n"


# --- the command -----------------------------------------------------------------------------------------------

BAD = "import torch.distributed as dist\n\nif dist.get_rank() == 0:\n    dist.barrier()\n"


def test_report_names_file_line_column_rule_reason_and_remedy(script: Path) -> None:
    script.write_text(BAD)
    done = lint(script)
    rule = lint_fsdp.RULES["FSDP030"]
    assert done.stdout == f"{script}:4:5: FSDP030 error: barrier: {rule['why']}\n    {rule['fix']}\n"
    assert (done.returncode, done.stderr) == (1, "")


def test_json_has_every_field(script: Path) -> None:
    script.write_text(BAD)
    done = lint("--json", script)
    rule = lint_fsdp.RULES["FSDP030"]
    assert json.loads(done.stdout) == [
        {
            "file": str(script),
            "line": 4,
            "column": 5,
            "code": "FSDP030",
            "name": "collective-on-one-rank",
            "level": "error",
            "why": f"barrier: {rule['why']}",
            "fix": rule["fix"],
        }
    ]
    assert done.returncode == 1


def test_sarif_names_place_and_described_rule(script: Path) -> None:
    script.write_text(BAD)
    done = lint("--sarif", script)
    report = json.loads(done.stdout)
    [run] = report["runs"]
    assert report["version"] == "2.1.0"
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == list(lint_fsdp.RULES)
    rule = lint_fsdp.RULES["FSDP030"]
    place = {"artifactLocation": {"uri": script.as_posix()}, "region": {"startLine": 4, "startColumn": 5}}
    assert run["results"] == [
        {
            "ruleId": "FSDP030",
            "level": "error",
            "message": {"text": f"barrier: {rule['why']} {rule['fix']}"},
            "locations": [{"physicalLocation": place}],
        }
    ]
    assert done.returncode == 1


@pytest.mark.parametrize(("form", "text"), [("--json", "[]"), ("--sarif", '"results": []')])
def test_clean_files_make_a_whole_report(script: Path, form: str, text: str) -> None:
    script.write_text("x = 1\n")
    done = lint(form, script)
    assert done.returncode == 0
    assert text in done.stdout
    json.loads(done.stdout)


@pytest.mark.parametrize(
    ("comment", "code"),
    [("# noqa: FSDP030", 0), ("# noqa", 0), ("# noqa: E501, FSDP030", 0), ("# noqa: FSDP031", 1), ("# noqat", 1)],
)
def test_noqa_silences_the_rules_it_names(script: Path, comment: str, code: int) -> None:
    script.write_text(BAD.replace("barrier()", f"barrier()  {comment}"))
    assert lint(script).returncode == code


def test_noqa_at_the_end_of_a_long_call_counts(script: Path) -> None:
    script.write_text(BAD.replace("barrier()", "all_reduce(\n        1,\n    )  # noqa: FSDP030"))
    assert lint(script).returncode == 0


@pytest.mark.parametrize("code", CODES)
def test_explain_gives_reason_remedy_and_example(code: str) -> None:
    done = lint("--explain", code.lower())
    rule = lint_fsdp.RULES[code]
    start = f"{code} {rule['name']} ({rule['level']})\n{rule['why']}\nFix: {rule['fix']}\n"
    assert done.returncode == 0
    assert done.stdout.startswith(start)
    assert done.stdout.count("```diff\n") == 1
    assert done.stdout.rstrip().endswith("```")


def test_script_alone_still_explains_and_says_where_the_examples_are(tmp_path: Path) -> None:
    alone = tmp_path / "lint.py"
    alone.write_bytes(SCRIPT.read_bytes())
    command = [sys.executable, "-I", alone, "--explain", "FSDP001"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert lint_fsdp.RULES["FSDP001"]["fix"] in done.stdout
    assert "references/guide-lint.md" in done.stdout


def test_folders_are_searched_but_not_environments(tmp_path: Path) -> None:
    for name in ("a.py", "in/b.py", ".venv/c.py", "venv/d.py", "f.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("def (:\n")
    names = [finding["file"] for finding in json.loads(lint("--json", tmp_path).stdout)]
    assert names == [str(tmp_path / "a.py"), str(tmp_path / "in" / "b.py")]


@pytest.mark.parametrize("data", [b"def (:\n", b"x = 1\0\n", b"(" * 500 + b")" * 500, b"x = '\xff'\n"])
def test_what_is_not_python_is_a_finding(script: Path, data: bytes) -> None:
    script.write_bytes(data)
    done = lint("--fix", script)
    assert done.returncode == 1
    assert done.stdout.startswith(f"{script}:1:1: FSDP000 error: ")
    assert script.read_bytes() == data


def test_file_that_begins_with_a_byte_order_mark_is_read(script: Path) -> None:
    script.write_bytes(b"\xef\xbb\xbf" + BAD.encode())
    assert "FSDP030" in lint(script).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no PATH, or no such rule"),
        (["nowhere.py"], "No such file or directory: 'nowhere.py'"),
        (["--torch", "new", "."], "argument --torch: invalid release value: 'new'"),
        (["--torch", "2", "."], "argument --torch: invalid release value: '2'"),
        (["--select", "E501", "."], "no PATH, or no such rule"),
        (["--explain", "FSDP999"], "no rule FSDP999; there are FSDP001, FSDP002"),
    ],
)
def test_wrong_usage_is_said_in_one_line_and_exits_2(arguments: list[str], message: str) -> None:
    done = lint(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr.splitlines()[-1]


def test_select_leaves_the_named_rules_only(script: Path) -> None:
    script.write_text((CASES / "FSDP083-bad.txt").read_text())
    assert lint("--select", "fsdp083", script).returncode == 1
    assert lint("--select", "FSDP001,FSDP002", script).returncode == 0


@pytest.mark.parametrize(
    ("torch", "codes"),
    [
        (None, []),
        ("2.6", ["FSDP082"]),
        ("2.6.0+cu126", ["FSDP082"]),
        ("2.12.1", ["FSDP082"]),
        ("2.13", ["FSDP081"]),
    ],
)
def test_torch_option_tells_what_is_new_and_what_is_old(script: Path, torch: str | None, codes: list[str]) -> None:
    script.write_text(
        "import torch.distributed as dist\n"
        "def one(x, y):\n    return dist.all_gather_into_tensor(x, y)\n"
        "def two(x, y):\n    return dist.all_gather_single(x, y)\n"
    )
    done = lint("--json", *(["--torch", torch] if torch else []), script)
    assert [finding["code"] for finding in json.loads(done.stdout)] == codes


def test_help_is_short() -> None:
    done = lint("--help")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) <= 25


def test_only_the_standard_library_of_python_39_is_needed() -> None:
    tree = ast.parse(SCRIPT.read_text(), feature_version=(3, 9))
    imported = {
        (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
    }
    assert imported <= sys.stdlib_module_names

"""The linter finds what is wrong in the bad files, at the right places, and nothing in the good ones."""

import ast
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "lint_fsdp.py"
GUIDE = ROOT / "references" / "guide-lint.md"
CASES = ROOT / "tests" / "cases" / "lint"
HISTORY = ROOT / "skill_builder" / "api_history.json"
OPT_IN = {"FSDP073", "FSDP090"}


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lint_fsdp", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["lint_fsdp"] = module
    spec.loader.exec_module(module)
    return module


lint_fsdp = load()
CODES = sorted(lint_fsdp.RULES)


def lint(*arguments: object, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-W", "error", SCRIPT, *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, check=False)


def found(code: str, text: str) -> list[tuple[str, int]]:
    """Codes and lines, of the default rules and of the one that is asked for."""
    rules = [rule for rule in lint_fsdp.RULES.values() if rule.default or rule.code == code]
    torch = (2, 6) if code == "FSDP082" else None
    return sorted({(finding.code, finding.line) for finding in lint_fsdp.check("x.py", text, rules, torch)})


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


def test_there_are_at_least_30_rules_and_no_file_without_one() -> None:
    assert len(CODES) >= 30
    assert sorted({path.name.partition("-")[0] for path in CASES.iterdir()}) == CODES


def test_only_the_rules_that_are_imprecise_or_about_moving_on_are_opt_in() -> None:
    assert {code for code, rule in lint_fsdp.RULES.items() if not rule.default} == OPT_IN


MODULES = {
    "import os": ["os"],
    "import torch": ["torch"],
    "import torch.distributed as dist": ["dist"],
    "import torch.distributed.checkpoint as dcp": ["dcp"],
    "from torch import nn": ["nn"],
    "from torch.distributed.algorithms.join import Join": ["Join"],
    "from torch.distributed.checkpoint.state_dict import *": [
        "StateDictOptions",
        "get_model_state_dict",
        "set_model_state_dict",
    ],
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
    assert example[1] == lint_fsdp.RULES[code].name
    before, after = (
        "".join(line[1:] for line in example[2].splitlines(keepends=True) if line[0] in f" {sign}") for sign in "-+"
    )
    assert code in {each for each, _ in found(code, program(before))}
    assert code not in {each for each, _ in found(code, program(after))}


# --- names that rules know -------------------------------------------------------------------------------------


def test_every_name_of_torch_that_the_rules_know_is_what_the_history_says() -> None:
    if not HISTORY.is_file():
        pytest.skip(f"{HISTORY.name} is not there yet")
    from skill_builder.history import load_history

    history = load_history()
    wrong = []
    for line in lint_fsdp.HISTORY.strip().split("\n"):
        name, change, since = line.split(" ")[:3]
        path, _, parameter = ("torch.distributed" * name.startswith(".") + name).rstrip(")").partition("(")
        known: Any = history.object(path)
        if parameter and known:
            known = known.parameters[parameter]
        dates: dict[str, Callable[[], str | None]] = {
            "added": lambda known=known: known.since,
            "removed": lambda known=known: known.removed,
            "deprecated": lambda known=known: known.deprecated and (known.deprecated.since or "2.4"),
        }
        if known is None or dates[change]() != since:
            wrong.append(line)
    assert wrong == []
    assert lint_fsdp.version(lint_fsdp.NEWEST) == history.releases[-1]


def test_public_modules_offer_the_same_as_the_private_ones() -> None:
    pytest.importorskip("torch")
    for private, (public, names) in lint_fsdp.MOVED.items():
        old, new = (importlib.import_module(f"torch.distributed{path}") for path in (private, public))
        assert [getattr(old, name) is getattr(new, name) for name in names.split()] == [True] * len(names.split())


def test_every_argument_and_method_of_fsdp1_has_an_answer() -> None:
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    import inspect

    parameters = set(inspect.signature(fsdp.FullyShardedDataParallel).parameters) - {"module"}
    assert set(lint_fsdp.FSDP1_ARGUMENTS) == parameters
    assert all(hasattr(fsdp.FullyShardedDataParallel, method) for method in lint_fsdp.FSDP1_METHODS)


# --- no false alarms -------------------------------------------------------------------------------------------


def test_our_own_scripts_are_clean() -> None:
    done = lint(ROOT / "scripts")
    assert (done.returncode, done.stdout) == (0, "")


def test_programs_in_our_guides_are_clean(tmp_path: Path) -> None:
    for guide in sorted((ROOT / "references").glob("guide-*.md")):
        for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", guide.read_text(), re.M | re.S)):
            (tmp_path / f"{guide.stem}_{number}.py").write_text(block)
    done = lint(tmp_path)
    assert (done.returncode, done.stdout) == (0, "")


NOT_WRONG = {
    "the first rank goes ahead": """
        def first(rank):
            if rank not in [-1, 0]:
                dist.barrier()
            yield
            if rank == 0:
                dist.barrier()
        """,
    "both sides send": """
        def share(value):
            if dist.get_rank() == 0:
                dist.broadcast(value, 0)
            else:
                dist.broadcast(value, 0)
        """,
    "only some ranks are in the group": """
        def share(value, group):
            if dist.get_rank() == 0:
                dist.broadcast(value, 0, group=group)
        """,
    "another model has the name": """
        def one(model):
            fully_shard(model)
        def other(model):
            model = FSDP(model, auto_wrap_policy=None)
            model.clip_grad_norm_(1.0)
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
    "names in a string": """
        def about():
            return "import torch.distributed._tensor"
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
        from ours import fully_shard as shard_all
        def build(model, optimizer):
            optimizer = torch.optim.SGD(model.parameters())
            shard_all(model, cpu_offload=True)
            model.no_sync()
        """,
}


@pytest.mark.parametrize("text", NOT_WRONG.values(), ids=NOT_WRONG)
def test_look_alike_is_not_reported(text: str) -> None:
    import textwrap

    imports = (
        "import torch\nimport torch.distributed as dist\n"
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, fully_shard\n"
    )
    assert found("FSDP001", imports + textwrap.dedent(text)) == []


@pytest.mark.parametrize(
    "imports",
    [
        "from torch.distributed.fsdp import fully_shard as wrap_it",
        "import torch.distributed.fsdp as f\nwrap_it = f.fully_shard",
        "import torch.distributed.fsdp\nwrap_it = torch.distributed.fsdp.fully_shard",
        "from torch.distributed.fsdp._fully_shard import fully_shard\nwrap_it = fully_shard",
    ],
)
def test_name_is_known_however_it_is_imported(imports: str) -> None:
    text = f"{imports}\ndef run(model, x):\n    wrap_it(model)\n    return model.forward(x)\n"
    assert [code for code, _ in found("FSDP004", text)] == ["FSDP004"]


# --- mending ---------------------------------------------------------------------------------------------------

FIXABLE = ["FSDP004", "FSDP012", "FSDP083", "FSDP084"]


@pytest.mark.parametrize("code", FIXABLE)
def test_fix_makes_the_good_file_out_of_the_bad_one(tmp_path: Path, code: str) -> None:
    script = tmp_path / "train.py"
    script.write_text((CASES / f"{code}-bad.txt").read_text())
    done = lint("--fix", script)
    good = (CASES / f"{code}-good.txt").read_text()
    assert script.read_text().partition("\n")[2] == good.partition("\n")[2]
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("code", CODES)
def test_fix_leaves_python_and_a_second_one_leaves_everything(tmp_path: Path, code: str) -> None:
    script = tmp_path / "train.py"
    script.write_text((CASES / f"{code}-bad.txt").read_text())
    lint("--fix", "--select", "ALL", script)
    once = script.read_text()
    ast.parse(once)
    assert "0 mended" in lint("--fix", "--select", "ALL", script).stderr
    assert script.read_text() == once


def test_fix_keeps_line_ends_encoding_and_what_stands_before_on_the_line(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    before = (
        "# -*- coding: latin-1 -*-\r\nfrom torch.distributed.fsdp import fully_shard\r\n"
        "def run(model, x):\r\n    fully_shard(model)\r\n    é = 'ü'; y = model.forward(x)  # ä\r\n"
    )
    script.write_bytes(before.encode("latin-1"))
    assert lint("--fix", script).returncode == 0
    assert script.read_bytes() == before.replace("model.forward(", "model(").encode("latin-1")


def test_fix_of_fsdp2_clipping_passes_the_parameters() -> None:
    text = (
        "import torch\nfrom torch.distributed.fsdp import fully_shard\n"
        "def run(self):\n    fully_shard(self.model)\n    return self.model.clip_grad_norm_(1.0, norm_type=2)\n"
    )
    mended, count = lint_fsdp.mend_all("x.py", text, list(lint_fsdp.RULES.values()), None)
    assert (count, mended.splitlines()[-1]) == (
        1,
        "    return torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, norm_type=2)",
    )


def test_edits_that_would_break_the_syntax_are_not_made() -> None:
    assert lint_fsdp.mend("f(1)\n", [lint_fsdp.Edit(1, 4, "(")]) == "f(1)\n"


# --- the command -----------------------------------------------------------------------------------------------


def test_report_names_file_line_column_rule_reason_and_remedy(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch.distributed as dist\n\nä = 1; dist.all_reduce(ä, async_op=True)\n")
    done = lint(script)
    rule = lint_fsdp.RULES["FSDP031"]
    assert done.returncode == 1
    assert done.stdout == f"{script}:3:8: FSDP031 error: all_reduce: {rule.why}\n    {rule.fix}\n"
    assert done.stderr == "1 findings in 1 files\n"


def test_json_has_every_field() -> None:
    text = (CASES / "FSDP004-bad.txt").read_text()
    start = text.index(".forward")
    done = lint("--json", "-", stdin=text)
    report = json.loads(done.stdout)
    [finding] = report["findings"]
    assert (report["files"], report["fixed"], done.returncode) == (1, 0, 1)
    assert finding == {
        "file": "-",
        "line": 9,
        "column": 12,
        "end_line": 9,
        "end_column": 33,
        "code": "FSDP004",
        "rule": "forward-called",
        "level": "error",
        "message": f"model.forward: {lint_fsdp.RULES['FSDP004'].why}",
        "fix": lint_fsdp.RULES["FSDP004"].fix,
        "edits": [{"start": start, "end": start + len(".forward"), "new": ""}],
    }


TEXT = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string", "minLength": 1}}}
POSITION = {"type": "integer", "minimum": 1}
SARIF = {
    "type": "object",
    "required": ["version", "runs", "$schema"],
    "additionalProperties": False,
    "properties": {
        "$schema": {"type": "string"},
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["tool", "results"],
                "additionalProperties": False,
                "properties": {
                    "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                    "tool": {
                        "type": "object",
                        "required": ["driver"],
                        "properties": {
                            "driver": {
                                "type": "object",
                                "required": ["name"],
                                "properties": {
                                    "rules": {
                                        "type": "array",
                                        "uniqueItems": True,
                                        "items": {
                                            "type": "object",
                                            "required": ["id"],
                                            "additionalProperties": False,
                                            "properties": {
                                                "id": {"type": "string"},
                                                "name": {"type": "string"},
                                                "fullDescription": TEXT,
                                            },
                                        },
                                    }
                                },
                            }
                        },
                    },
                    "results": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["message", "ruleId", "level", "locations"],
                            "additionalProperties": False,
                            "properties": {
                                "ruleId": {"type": "string"},
                                "level": {"enum": ["none", "note", "warning", "error"]},
                                "message": TEXT,
                                "locations": {
                                    "type": "array",
                                    "minItems": 1,
                                    "items": {
                                        "type": "object",
                                        "required": ["physicalLocation"],
                                        "properties": {
                                            "physicalLocation": {
                                                "type": "object",
                                                "required": ["artifactLocation", "region"],
                                                "properties": {
                                                    "artifactLocation": {"required": ["uri"]},
                                                    "region": {
                                                        "required": ["startLine"],
                                                        "additionalProperties": False,
                                                        "properties": dict.fromkeys(
                                                            ["startLine", "startColumn", "endLine", "endColumn"],
                                                            POSITION,
                                                        ),
                                                    },
                                                },
                                            }
                                        },
                                    },
                                },
                            },
                        },
                    },
                },
            },
        },
    },
}
"""What SARIF 2.1.0 (OASIS, sections 3.13 to 3.31) asks of the properties that we write."""


def test_sarif_is_valid_and_its_results_name_described_rules(tmp_path: Path) -> None:
    for code in CODES:
        (tmp_path / f"{code}.py").write_text((CASES / f"{code}-bad.txt").read_text())
    (tmp_path / "broken.py").write_text("def (:\n")
    done = lint("--sarif", "--select", "ALL", "--torch", "2.6", tmp_path)
    report = json.loads(done.stdout)
    jsonschema.validate(report, SARIF)
    [run] = report["runs"]
    described = {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    assert {result["ruleId"] for result in run["results"]} == described == {"FSDP000", *CODES}


@pytest.mark.parametrize(
    ("comment", "code"),
    [("# noqa: FSDP031", 0), ("# noqa", 0), ("# noqa: E501, FSDP031", 0), ("# noqa: FSDP032", 1), ("# noqat", 1)],
)
def test_noqa_silences_the_rules_it_names(comment: str, code: int) -> None:
    text = f"import torch.distributed as dist\ndist.all_reduce(x, async_op=True)  {comment}\n"
    assert lint("-", stdin=text).returncode == code


def test_noqa_at_the_end_of_a_long_call_counts() -> None:
    text = "import torch.distributed as dist\ndist.all_reduce(\n    x, async_op=True\n)  # noqa: FSDP031\n"
    assert lint("-", stdin=text).returncode == 0


@pytest.mark.parametrize("code", CODES)
def test_explain_gives_reason_remedy_and_example(code: str) -> None:
    done = lint("--explain", code.lower())
    rule = lint_fsdp.RULES[code]
    start = f"{code} {rule.name} ({rule.level})\n\n{rule.why}\n\nFix: {rule.fix}\n\n"
    assert done.returncode == 0
    assert done.stdout.startswith(start)
    assert done.stdout.count("```diff\n") == 1
    assert done.stdout.endswith("```\n")


def test_script_alone_still_explains(tmp_path: Path) -> None:
    alone = tmp_path / "lint.py"
    alone.write_bytes(SCRIPT.read_bytes())
    done = subprocess.run(
        [sys.executable, "-I", alone, "--explain", "FSDP001"], capture_output=True, text=True, timeout=60, check=True
    )
    assert lint_fsdp.RULES["FSDP001"].fix in done.stdout


def test_list_names_every_rule() -> None:
    assert [line.split()[0] for line in lint("--list").stdout.splitlines()] == CODES


def test_folders_are_searched_but_not_environments(tmp_path: Path) -> None:
    for name in ("a.py", "in/b.py", ".venv/c.py", "venv/d.py", "in/__pycache__/e.py", "f.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("def (:\n")
    report = json.loads(lint("--json", tmp_path).stdout)
    names = [Path(finding["file"]).relative_to(tmp_path).as_posix() for finding in report["findings"]]
    assert names == ["a.py", "in/b.py"]


@pytest.mark.parametrize("text", ["def (:\n", "x = 1\0\n", "(" * 500 + ")" * 500])
def test_what_is_not_python_is_a_finding(text: str) -> None:
    done = lint("-", stdin=text)
    assert done.returncode == 1
    assert done.stdout.startswith("-:1:")
    assert "FSDP000 error: This cannot be read as Python: " in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no PATH; name a Python file, a folder or - for stdin"),
        (["nowhere.py"], "nowhere.py: there is no such file or folder; name a Python file, a folder or - for stdin"),
        (["--torch", "new", "."], "--torch new is no release; write it as 2.6"),
        (["--torch", "2", "."], "--torch 2 is no release; write it as 2.6"),
        (["--select", "E501", "."], "there is no rule E501; --list names them"),
        (["--ignore", "FSDP999", "."], "there is no rule FSDP999; --list names them"),
        (["--explain", "FSDP999"], "there is no rule FSDP999; --list names them"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(arguments: list[str], message: str) -> None:
    done = lint(*arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"lint_fsdp.py: {message}\n")


def test_file_that_is_not_text_is_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"\xff\xfe\x00")
    done = lint(tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"lint_fsdp.py: {tmp_path / 'a.py'}: is not in the encoding that it declares (")


def test_select_and_ignore_take_beginnings_of_codes() -> None:
    text = (CASES / "FSDP083-bad.txt").read_text()
    assert lint("--select", "FSDP08", "-", stdin=text).returncode == 1
    assert lint("--select", "FSDP00", "-", stdin=text).returncode == 0
    assert lint("--ignore", "FSDP083", "-", stdin=text).returncode == 0
    assert lint("--select", "ALL", "--ignore", "FSDP08", "-", stdin=text).returncode == 0


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
def test_torch_option_tells_what_is_new_and_what_is_old(torch: str | None, codes: list[str]) -> None:
    text = (
        "import torch.distributed as dist\n"
        "def one(x, y):\n    return dist.all_gather_into_tensor(x, y)\n"
        "def two(x, y):\n    return dist.all_gather_single(x, y)\n"
    )
    done = lint("--json", *(["--torch", torch] if torch else []), "-", stdin=text)
    assert [finding["code"] for finding in json.loads(done.stdout)["findings"]] == codes


def test_help_is_short() -> None:
    done = lint("--help")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) <= 25


def test_only_the_standard_library_is_imported() -> None:
    imported = {
        (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name).partition(".")[0]
        for node in ast.walk(ast.parse(SCRIPT.read_text()))
        if isinstance(node, (ast.Import, ast.ImportFrom))
    }
    assert imported <= sys.stdlib_module_names


def test_syntax_is_that_of_python_38() -> None:
    ast.parse(SCRIPT.read_text(), feature_version=(3, 8))

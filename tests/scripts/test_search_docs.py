"""search_docs.py as an agent runs it: a process of its own, on a built skill."""

import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from skill_builder.index.entries import load_search
from skill_builder.skill.assemble import sources

SCRIPT = sources() / "scripts" / "search_docs.py"
SEARCH = load_search(sources() / "scripts")


@pytest.fixture
def run(built_skill):
    return lambda *arguments, **settings: search(built_skill, *arguments, **settings)


def search(skill, *arguments, stdin=None, python=sys.executable):
    command = [python, "-I", "-S", str(skill / "scripts" / "search_docs.py"), *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=False)


def results(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["results"]


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("set_requires_gradient_sync", ["set_requires_gradient_sync", "set", "requir", "gradient", "sync"]),
        ("MixedPrecisionPolicy", ["mixedprecisionpolicy", "mix", "precis", "policy"]),
        ("torch.distributed.fsdp", ["torch.distributed.fsdp", "fsdp", "torch", "distribut", "fsdp"]),
        ("NCCL_DEBUG", ["nccl_debug", "nccl", "debug"]),
        ("FSDP2", ["fsdp2"]),
        ("How do I shard the shards of sharded sharding?", ["shard"] * 4),
        ("checkpoints replicates replication 2.13", ["checkpoint", "replic", "replic", "2.13"]),
        ("", []),
        ("?!… ()", []),
    ],
)
def test_terms(text, terms):
    assert SEARCH.tokenize(text) == terms


def test_results_have_what_the_contract_names(run, built_skill):
    answer = json.loads(run("--json", "--", "accumulate gradients with fully_shard").stdout)
    assert list(answer) == ["query", "results", "tokens"]
    assert answer["tokens"] == sum(result["tokens"] for result in answer["results"]) <= 1500
    for result in answer["results"]:
        assert list(result) == [
            "title", "url", "file", "lines", "category", "score", "tokens", "since", "until", "text",
        ]  # fmt: skip
        assert result["tokens"] == -(-len(result["text"]) // 4)
        assert re.match(r"https://docs\.pytorch\.org/|references/guide-", result["url"])
    assert [result["score"] for result in answer["results"]] == sorted(
        (result["score"] for result in answer["results"]), reverse=True
    )


def test_a_result_is_what_stands_in_its_file_at_its_lines(run, built_skill):
    for result in results(run("--json", "--limit", "20", "--budget", "8000", "--", "reduce scatter gradients")):
        lines = (built_skill / "references" / result["file"]).read_text(encoding="utf-8").split("\n")
        first, last = result["lines"]
        stands = re.sub(r"\W+", " ", SEARCH.clean("\n".join(lines[first - 1 : last])))
        assert re.sub(r"\W+", " ", result["text"]).strip() in stands.strip()


@pytest.mark.parametrize(
    "name", ["torch.distributed.fsdp.fully_shard", "fully_shard", "fully_shard()", "`fully_shard`", "fuly_shard"]
)
def test_the_object_that_is_named_comes_first(run, name):
    first = results(run("--json", "--", name))[0]
    assert first["url"].endswith("#torch.distributed.fsdp.fully_shard")


def test_text_for_people_has_headings_files_and_urls(run):
    done = run("--limit", "1", "--", "set_requires_gradient_sync")
    text = done.stdout.decode()
    assert text.startswith("=== ")
    assert "\nreferences/docs-fsdp2.md:" in text
    assert "https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html#" in text


def test_a_category_answers_though_sections_of_others_match_better(built_skill, monkeypatch):
    index = SEARCH.Index(str(built_skill))

    def answering():
        found = {name: SEARCH.search(index, "process group", category=name) for name in index.categories}
        sections = [(name, result.section) for name, results in found.items() for result in results]
        assert all(index.categories[index.category[section]] == name for name, section in sections)
        return [name for name, results in found.items() if results]

    monkeypatch.setattr(SEARCH, "LIKELY", len(index.titles))
    having = answering()
    assert "collectives" in having
    assert len(having) > 2
    monkeypatch.setattr(SEARCH, "LIKELY", 1)
    assert answering() == having


def test_a_category_narrows_the_search(run):
    for result in results(run("--json", "--category", "fsdp2", "--", "process group")):
        assert result["category"] == "fsdp2"


def test_the_same_query_gives_the_same_bytes_whatever_the_hash_seed(built_skill):
    command = [sys.executable, str(built_skill / "scripts" / "search_docs.py"), "--json", "--", "NCCL timeout hang"]
    outputs = {
        subprocess.run(command, capture_output=True, check=True, env={"PYTHONHASHSEED": seed}).stdout for seed in "123"
    }
    assert len(outputs) == 1


def test_a_query_from_standard_input_may_be_a_log(run):
    log = "INFO step 1\n" * 200 + "RuntimeError: No backend type associated with device type cpu\n"
    assert results(run("--json", "-", stdin=log.encode()))


def test_nothing_found_says_so_and_names_what_is_near(run):
    done = run("--json", "--", "zzqx reshard_after_forwrd_zz")
    assert done.returncode in (0, 1)
    done = run("--", "zzqxy")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b"search_docs.py: nothing found; ")
    assert json.loads(run("--json", "--", "zzqxy").stdout) == {"query": "zzqxy", "results": [], "tokens": 0}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the query is empty"),
        (["--", ""], "the query is empty"),
        (["--budget", "0", "--", "x"], "--budget wants a whole number of at least 1, not '0'"),
        (["--limit=-3", "--", "x"], "--limit wants a whole number of at least 1, not '-3'"),
        (["--budget", "many", "--", "x"], "--budget wants a whole number of at least 1, not 'many'"),
        (["--colour", "--", "x"], "no option '--colour'; see --help"),
        (["--category", "nonsense", "--", "x"], "no category 'nonsense': use one of "),
    ],
)
def test_wrong_usage_is_status_2(run, arguments, message):
    done = run(*arguments)
    assert done.returncode == 2
    assert message in done.stderr.decode()


def test_help_is_the_contract(run):
    usage = b"usage: search_docs.py [--budget TOKENS] [--limit N] [--category C] [--torch VERSION] [--json] -- QUERY"
    assert usage in run("--help").stdout


@pytest.mark.parametrize("query", ["?!", "…", "日本語の質問", "как шардировать", "\U0001f600", "a", "_", "."])
def test_any_query_gets_an_answer_or_none(run, query):
    done = run("--json", "--", query)
    assert done.returncode in (0, 1)
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("budget", [1, 2, 10, 10_000_000])
def test_any_budget_is_kept(run, budget):
    answer = json.loads(run("--json", "--budget", str(budget), "--", "fully_shard").stdout)
    assert 0 < answer["tokens"] <= budget


@pytest.mark.parametrize("option", ["--json", "--limit=12"])
def test_a_reader_that_has_enough_ends_it_quietly(built_skill, option):
    command = [
        sys.executable,
        str(built_skill / "scripts" / "search_docs.py"),
        "--budget",
        "40000",
        option,
        "--",
        "fsdp",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_what_it_prints_is_utf_8(built_skill, encoding):
    command = [sys.executable, str(built_skill / "scripts" / "search_docs.py"), "--json", "--", "fully_shard \u2603"]
    done = subprocess.run(command, capture_output=True, env={"PYTHONIOENCODING": encoding}, check=True)
    assert json.loads(done.stdout.decode())["query"] == "fully_shard \u2603"


def test_a_query_of_100_kb_and_one_that_is_no_utf_8(run):
    assert run("-", stdin=b"gradient " * 12_000).returncode == 0
    assert run("-", stdin=b"\xff\xfe gradient \x80").returncode == 0


@pytest.mark.parametrize("damage", ["missing", "empty", "json", "format", "packed", "reference"])
def test_a_broken_skill_is_status_2_and_says_what_to_do(built_skill, tmp_path, damage):
    skill = tmp_path / "pytorch-fsdp"
    shutil.copytree(built_skill, skill)
    path = skill / "references" / "index.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    if damage == "missing":
        path.unlink()
    elif damage == "empty":
        path.write_text("", encoding="utf-8")
    elif damage == "json":
        path.write_text("[1, 2]", encoding="utf-8")
    elif damage == "format":
        path.write_text(json.dumps({**data, "format": 99}), encoding="utf-8")
    elif damage == "packed":
        path.write_text(json.dumps({**data, "catalog": data["catalog"][1:]}), encoding="utf-8")
    else:
        (skill / "references" / "docs-fsdp2.md").unlink()
    done = search(skill, "--", "fully_shard")
    assert done.returncode == 2
    assert done.stderr.decode().endswith("; install the skill again, or rebuild it with fsdp-skill build\n")
    assert b"Traceback" not in done.stderr


def test_the_script_is_python_3_8_and_imports_the_standard_library_only():
    tree = ast.parse(SCRIPT.read_text(encoding="utf-8"), feature_version=(3, 8))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10", "3.12", "3.13"])
def test_the_script_runs_on_other_pythons(built_skill, version):
    here = Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python")
    python = next((name for name in [*map(str, here), shutil.which(f"python{version}")] if name and works(name)), None)
    if python is None:
        pytest.skip(f"no Python {version} here")
    assert results(search(built_skill, "--json", "--", "fully_shard", python=python))


def works(python):
    return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0


def version_of(skill):
    return SEARCH.Index(str(skill)).version


def test_a_result_says_since_when_torch_has_it(run):
    found = results(run("--json", "--", "torch.distributed.fsdp.FSDPModule.set_reshard_after_forward"))[0]
    assert (found["since"], found["until"]) == ("2.8", None)
    assert b"(since 2.8)" in run("--", "set_reshard_after_forward").stdout
    assert results(run("--json", "--", "torch.distributed.barrier"))[0]["since"] is None


@pytest.mark.parametrize(
    ("release", "name", "remark"),
    [
        ("2.7", "set_reshard_after_forward", "torch 2.7 lacks this, which is new in 2.8."),
        (
            "2.7.1+cu128",
            "set_gradient_divide_factor",
            "Use `torch.distributed.fsdp.FSDPModule.set_reduce_scatter_divide_factor`: "
            "torch 2.7.1+cu128 lacks this, which is new in 2.8.",
        ),
        (
            "2.5",
            "fully_shard",
            "Use `torch.distributed._composable.fsdp.fully_shard`: torch 2.5 lacks this, which is new in 2.6.",
        ),
        ("2.6", "fully_shard", "torch 2.6 lacks its `ignored_params` (new in 2.7), `dp_mesh_dims` (new in 2.12)."),
    ],
)
def test_what_a_release_lacks_comes_first(run, release, name, remark):
    done = run("--json", "--torch", release, "--", name)
    assert results(done)[0]["text"].startswith(remark + "\n\n")
    assert json.loads(done.stdout)["tokens"] <= 1500


def test_a_release_that_has_it_all_has_no_remarks(run):
    assert b" lacks " not in run("--torch", "2.13", "--", "fully_shard").stdout


def test_the_torch_beside_python_is_taken_without_asking(built_skill, tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").write_text("debug = False\n__version__ = '2.7.1+cu128'\ncuda = '12.8'\n")
    command = [sys.executable, "-S", str(built_skill / "scripts" / "search_docs.py"), "--", "set_reshard_after_forward"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONPATH": str(tmp_path)})
    assert "torch 2.7.1+cu128 lacks this" in done.stdout
    assert done.stderr == (
        "search_docs.py: beside this Python is torch 2.7.1+cu128, the documentation is of "
        f"{version_of(built_skill)}; what it lacks is marked\n"
    )


def test_a_torch_that_does_not_say_its_version_is_none(built_skill, tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").write_bytes(b"\xff")
    command = [sys.executable, "-S", str(built_skill / "scripts" / "search_docs.py"), "--", "set_reshard_after_forward"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONPATH": str(tmp_path)})
    assert done.stderr == ""


def test_torch_wants_a_release(run):
    done = run("--torch", "two", "--", "fully_shard")
    assert done.returncode == 2
    assert b"--torch wants a release such as 2.7, not 'two'" in done.stderr


def test_a_guide_that_quotes_the_message_comes_first_and_others_after_the_documentation(run):
    log = "[rank1]: RuntimeError: aten.add.Tensor: got mixed torch.Tensor and DTensor, need to convert all torch.Tensor"
    assert results(run("--json", "--", log))[0]["category"] == "guides"
    assert results(run("--json", "--", "what is an unsharded parameter in fully_shard"))[0]["category"] != "guides"

"""What the templates have in common is the same text in each, so that who knows one knows the others."""

from __future__ import annotations

import ast
import sys
from collections import defaultdict

import pytest

from tests.scripts.conftest import SCRIPTS

TEMPLATES = [f"train_{name}.py" for name in ("fsdp2", "fsdp1", "mixed_precision", "cpu_offload")]

OWN = {
    "train_fsdp1.py": {
        "train", "build_mesh", "shard", "materialise", "build_optimizer", "forward_backward", "clip_gradients",
        "export",
    },
    "train_mixed_precision.py": {"train", "shard", "forward_backward"},
    "train_cpu_offload.py": {"train", "wrap_forward", "shard"},
}  # fmt: skip
"""What a template does in its own way although train_fsdp2.py has a function of that name."""


def pieces(name: str) -> dict[str, str]:
    source = (SCRIPTS / name).read_text()
    nodes = (n for n in ast.parse(source).body if isinstance(n, (ast.FunctionDef, ast.ClassDef)))
    return {node.name: ast.get_source_segment(source, node) for node in nodes}


def options(name: str) -> dict[str, str]:
    """Each command-line option with its default, help and words, as they are written."""
    source = (SCRIPTS / name).read_text()
    (table,) = (n.value for n in ast.parse(source).body if isinstance(n, ast.AnnAssign) and n.target.id == "OPTIONS")
    return {key.value: ast.unparse(value) for key, value in zip(table.keys, table.values, strict=True)}


@pytest.mark.parametrize("name", sorted(OWN))
def test_shared_functions_are_the_same_text(name):
    flagship, mine = pieces("train_fsdp2.py"), pieces(name)
    differing = {piece for piece in set(flagship) & set(mine) if flagship[piece] != mine[piece]}
    assert differing == OWN[name]


@pytest.mark.parametrize("name", sorted(OWN))
def test_shared_options_mean_the_same(name):
    flagship, mine = options("train_fsdp2.py"), options(name)
    differing = {option for option in set(flagship) & set(mine) if flagship[option] != mine[option]}
    own = {
        "train_fsdp1.py": {"replicas", "recompute"},
        "train_mixed_precision.py": {"dtype"},
        "train_cpu_offload.py": {"recompute"},
    }
    assert differing == own[name]


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_function_is_used_and_every_option_is_read(name):
    source = (SCRIPTS / name).read_text()
    assert [option for option in options(name) if f"args.{option.replace('-', '_')}" not in source] == []
    uses = defaultdict(int)
    for node in ast.walk(ast.parse(source)):
        uses[getattr(node, "id", getattr(node, "attr", ""))] += 1
    beside = {"shard_fsdp1"}  # for reading
    assert [piece for piece in pieces(name) if not uses[piece] and piece not in beside] == []


@pytest.mark.parametrize("name", TEMPLATES)
def test_only_torch_and_transformers_are_needed(name):
    tree = ast.parse((SCRIPTS / name).read_text())
    modules = {alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names}
    modules |= {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    outside = {module.partition(".")[0] for module in modules} - set(sys.stdlib_module_names)
    assert outside == {"torch", "transformers"}


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_environment_is_read_as_the_clients_scanner_allows(name):
    source = (SCRIPTS / name).read_text()
    assert source.count("os.environ") == source.count("os.environ.get(")
    for word in ("subprocess", "eval(", "exec(", "/proc/self", "sudo", "os.system", "getenv"):
        assert word not in source

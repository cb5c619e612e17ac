"""Names of torch: which a text mentions, and what they lead to."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator

_DOTTED = re.compile(r"(?<![\w.])torch(?:\.[A-Za-z_]\w*)+")
_URL = re.compile(r"https?://\S+")


def mentioned(text: str) -> set[str]:
    """The dotted names that begin with `torch.` in prose or code, outside URLs."""
    return set(_DOTTED.findall(_URL.sub("", text)))


def used(source: str) -> set[str]:
    """The names of torch that code uses, under whatever name it imports them."""
    tree = ast.parse(source)
    imported = dict(_imports(tree))
    chains = {chain for node in ast.walk(tree) if (chain := _chain(node))}
    heads = {chain: imported.get(chain.partition(".")[0]) for chain in chains}
    names = {head + chain[len(chain.partition(".")[0]) :] for chain, head in heads.items() if head}
    return {name for name in (*names, *imported.values()) if name.partition(".")[0] == "torch"}


def arguments(source: str) -> set[str]:
    """The keywords of all calls."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return {keyword.arg for call in calls for keyword in call.keywords if keyword.arg}


def resolve(name: str) -> object:
    """What a dotted name leads to.

    Raises:
        AttributeError: It leads nowhere.
    """
    head, *rest = name.split(".")
    found: object = importlib.import_module(head)
    for part in rest:
        head = f"{head}.{part}"
        if not hasattr(found, part):
            try:
                importlib.import_module(head)
            except ModuleNotFoundError:
                raise AttributeError(f"{head} is not in torch {importlib.import_module('torch').__version__}") from None
        found = getattr(found, part)
    return found


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (alias.asname, alias.name) if alias.asname else (alias.name.partition(".")[0],) * 2
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _chain(node: ast.AST) -> str:
    """`a.b.c` of an attribute of attributes of a name; else nothing."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join((node.id, *reversed(parts))) if isinstance(node, ast.Name) else ""

"""One ``def``, reduced to what the history asks of it; and the names and texts that expressions spell out.

A body is read once, for the warnings in it, and dropped: the syntax trees of a whole release would take a
hundred times the memory of its text.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_WARNER = re.compile(r"warn|deprecat", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Warned:
    """A call in a function's body that warns, or calls a function that does."""

    call: ast.Call
    always: bool
    """Whether every call of the function gets there, as far as ``if``, ``for`` and ``try`` show."""


@dataclass(frozen=True, slots=True)
class Function:
    """A ``def``, without its body."""

    name: str
    arguments: ast.arguments
    decorators: tuple[ast.expr, ...]
    doc: str
    warned: tuple[Warned, ...]
    keeps_signature: bool
    """As a decorator: whether what it returns has the signature of the function that it gets, because it
    marks the wrapper with ``functools.wraps`` or returns the function itself."""


def reduce_function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Function:
    """A ``def`` without its body."""
    return Function(
        node.name,
        _without_annotations(node.args),
        tuple(node.decorator_list),
        ast.get_docstring(node) or "",
        tuple(_warned(node.body, always=True)),
        _keeps_signature(node),
    )


def _without_annotations(arguments: ast.arguments) -> ast.arguments:
    given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    for arg in [*given, *filter(None, [arguments.vararg, arguments.kwarg])]:
        arg.annotation = None
    return arguments


def _warned(body: Iterable[ast.stmt], *, always: bool) -> Iterator[Warned]:
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            if _WARNER.search(dotted(statement.value.func).rpartition(".")[2]):
                yield Warned(statement.value, always)
            continue
        inner = always and (isinstance(statement, ast.With) or _is_about_compiling(statement))
        for block in ("body", "orelse", "finalbody"):
            yield from _warned(getattr(statement, block, []), always=inner and block == "body")
        for handler in getattr(statement, "handlers", []):
            yield from _warned(handler.body, always=False)


def _is_about_compiling(statement: ast.stmt) -> bool:
    """Whether an ``if`` only asks for the compiler, which every plain call passes."""
    test = ast.unparse(statement.test) if isinstance(statement, ast.If) else ""
    return re.fullmatch(r"not \S*is_(compiling|scripting|dynamo_compiling)\(\)", test) is not None


def _keeps_signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    inner = [n for n in ast.walk(node) if isinstance(n, ast.FunctionDef)]
    if any(_returns_what_it_gets(function) for function in inner):
        return True
    calls = {dotted(n.func).rpartition(".")[2] for n in ast.walk(node) if isinstance(n, ast.Call)}
    return bool(calls & {"wraps", "update_wrapper"})


def _returns_what_it_gets(node: ast.FunctionDef) -> bool:
    first = node.args.args[0].arg if node.args.args else ""
    returned = [_without_cast(n.value) for n in ast.walk(node) if isinstance(n, ast.Return) and n.value]
    return bool(first) and bool(returned) and all(name == first for name in returned)


def _without_cast(node: ast.expr) -> str:
    if isinstance(node, ast.Call) and dotted(node.func) in ("cast", "typing.cast") and len(node.args) == 2:
        return dotted(node.args[1])
    return dotted(node)


def dotted(node: ast.AST) -> str:
    """The text of ``a.b.c``, or an empty one for any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (head := dotted(node.value)):
        return f"{head}.{node.attr}"
    return ""


def text_of(node: ast.AST | None, known: dict[str, str]) -> str | None:
    """The text that an expression makes: literals, ``+``, f-strings and names whose text is known.

    What an f-string fills in from elsewhere becomes ``{}``. None for an expression that makes no text.
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = text_of(node.left, known), text_of(node.right, known)
        return None if left is None or right is None else left + right
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part, known) or "{}" for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return text_of(node.value, known)
    return None

"""Two signatures of an object, compared: which parameter, default or annotation changed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter as its stub declares it."""

    name: str
    kind: str
    """``positional-only``, ``positional``, ``*args``, ``keyword-only`` or ``**kwargs``."""
    annotation: str
    default: str
    """Empty where there is none."""


@dataclass(frozen=True, slots=True)
class SignatureChange:
    """One thing that is different."""

    what: str
    """``parameter``, ``default``, ``annotation``, ``kind``, ``order``, ``returns``, ``value`` or ``signature``."""
    name: str
    """Of the parameter; empty for the object as a whole."""
    old: str
    """Empty for what was added."""
    new: str

    def __str__(self) -> str:
        subject = f"{self.name}: " if self.name else ""
        if self.what == "parameter":
            return f"parameter {self.name} " + (f"added: {self.new}" if self.new else f"removed: {self.old}")
        return f"{subject}{self.what} {self.old or 'none'} -> {self.new or 'none'}"


def compare_signatures(old: str, new: str) -> list[SignatureChange]:
    """What is different between two stubs; where they cannot be told apart in detail, the stubs themselves.

    >>> [str(change) for change in compare_signatures("def f(a, b=1): ...", "def f(a, b=2, *, c=None): ...")]
    ['b: default 1 -> 2', 'parameter c added: c=None']
    """
    if old == new:
        return []
    before, after = _definitions(old), _definitions(new)
    if before is None or after is None or len(before) != len(after):
        return [SignatureChange("signature", "", old, new)]
    changes = [change for pair in zip(before, after, strict=True) for change in _compare(*pair)]
    if not changes and _dumped(old) != _dumped(new):
        return [SignatureChange("signature", "", old, new)]
    return changes


_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.AnnAssign | ast.Assign | ast.Expr


def _definitions(stub: str) -> list[_Definition] | None:
    """The definitions in a stub; None for what is no Python, or more than definitions."""
    try:
        body = ast.parse(stub).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return [node for node in body if isinstance(node, _Definition)]


def _dumped(stub: str) -> str:
    return ast.dump(ast.parse(stub))


def _compare(old: _Definition, new: _Definition) -> Iterator[SignatureChange]:
    before, after = _parameters(old), _parameters(new)
    yield from _compare_parameters(before, after)
    for what, read in (("returns", _returns), ("annotation", _annotation), ("value", _value)):
        if read(old) != read(new):
            yield SignatureChange(what, "", read(old), read(new))


def _compare_parameters(old: dict[str, Parameter], new: dict[str, Parameter]) -> Iterator[SignatureChange]:
    for name, parameter in old.items():
        if name not in new:
            yield SignatureChange("parameter", name, _declared(parameter), "")
    for name in (name for name in old if name in new):
        for what in ("kind", "annotation", "default"):
            values = getattr(old[name], what), getattr(new[name], what)
            if values[0] != values[1]:
                yield SignatureChange(what, name, *values)
    for name, parameter in new.items():
        if name not in old:
            yield SignatureChange("parameter", name, "", _declared(parameter))
    orders = [[n for n in some if n in old and n in new and some[n].kind == "positional"] for some in (old, new)]
    if orders[0] != orders[1] and set(orders[0]) == set(orders[1]):
        yield SignatureChange("order", "", ", ".join(orders[0]), ", ".join(orders[1]))


def _parameters(node: _Definition) -> dict[str, Parameter]:
    if isinstance(node, ast.ClassDef):
        makers = [item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"]
        return _parameters(makers[0]) if makers else {}
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return {}
    given = node.args
    positional = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(positional) - len(given.defaults)) + list(given.defaults)
    kinds = ["positional-only"] * len(given.posonlyargs) + ["positional"] * len(given.args)
    rows = [*zip(positional, kinds, defaults, strict=True)]
    if given.vararg:
        rows.append((given.vararg, "*args", None))
    rows += [(arg, "keyword-only", default) for arg, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    if given.kwarg:
        rows.append((given.kwarg, "**kwargs", None))
    return {arg.arg: Parameter(arg.arg, kind, _text(arg.annotation), _text(default)) for arg, kind, default in rows}


def _declared(parameter: Parameter) -> str:
    name = {"*args": "*", "**kwargs": "**"}.get(parameter.kind, "") + parameter.name
    annotated = f"{name}: {parameter.annotation}" if parameter.annotation else name
    if not parameter.default:
        return annotated
    return f"{annotated} = {parameter.default}" if parameter.annotation else f"{annotated}={parameter.default}"


def _returns(node: _Definition) -> str:
    return _text(node.returns) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else ""


def _annotation(node: _Definition) -> str:
    return _text(node.annotation) if isinstance(node, ast.AnnAssign) else ""


def _value(node: _Definition) -> str:
    return _text(node.value) if isinstance(node, (ast.AnnAssign, ast.Assign)) else ""


def _text(node: ast.expr | None) -> str:
    return ast.unparse(node) if node is not None else ""

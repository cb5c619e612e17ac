"""What one release says: a fact for each name."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

KINDS = ("alias", "attribute", "class", "function", "method", "module", "property", "unknown", "value")


@dataclass(frozen=True, slots=True)
class Fact:
    """What one release says of one name."""

    kind: str
    """One of KINDS. ``value`` comes from an expression, ``unknown`` from where no source shows it."""
    signature: str | None = None
    """The parameters in Python's own syntax, without annotations, such as ``module, *, mesh=None``. None
    where there are none to know: attributes, what is bound in C++, what a decorator hides."""
    target: str = ""
    """Of an alias: the name whose facts hold. Of another: the place of the definition, where it differs."""
    bases: tuple[str, ...] = ()
    """Of a class: the classes with facts of their own that it inherits from, in the order of lookup."""
    deprecated: str | None = None
    """The replacement that the source names, empty where it names none; None for what is not deprecated."""
    deprecated_parameters: tuple[tuple[str, str], ...] = ()
    """Parameters that are deprecated, each with its replacement or an empty text."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One release."""

    version: str
    """The full version, such as ``2.7.1``."""
    facts: Mapping[str, Fact]
    """A fact for each dotted name: modules, their objects, and the members of classes."""
    besides: Mapping[str, str] = field(default_factory=dict)
    """Names that are there without being offered: what modules import for their own use, and what classes
    inherit from outside; with the place of each. One that an earlier release offers is not gone:
    ``History.with_release`` makes a fact of it, and drops the others."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a signature."""

    name: str
    kind: str
    """As ``inspect.Parameter.kind`` spells it: ``POSITIONAL_ONLY``, ``KEYWORD_ONLY``, ``VAR_KEYWORD``, ..."""
    default: str | None = None
    """The source text of the default, or None for a required parameter."""


@cache
def parameters_of(signature: str) -> tuple[Parameter, ...]:
    """The parameters of a signature in the order in which they are written.

    >>> [(p.name, p.kind, p.default) for p in parameters_of("a, *, b=1")]
    [('a', 'POSITIONAL_OR_KEYWORD', None), ('b', 'KEYWORD_ONLY', '1')]
    """
    function = ast.parse(f"lambda {signature}: 0", mode="eval").body
    assert isinstance(function, ast.Lambda)
    given = function.args
    positional = [(arg, "POSITIONAL_ONLY") for arg in given.posonlyargs]
    positional += [(arg, "POSITIONAL_OR_KEYWORD") for arg in given.args]
    defaults = [None] * (len(positional) - len(given.defaults)) + given.defaults
    found = [_parameter(arg, kind, default) for (arg, kind), default in zip(positional, defaults, strict=True)]
    if given.vararg:
        found.append(_parameter(given.vararg, "VAR_POSITIONAL", None))
    pairs = zip(given.kwonlyargs, given.kw_defaults, strict=True)
    found += [_parameter(arg, "KEYWORD_ONLY", default) for arg, default in pairs]
    if given.kwarg:
        found.append(_parameter(given.kwarg, "VAR_KEYWORD", None))
    return tuple(found)


def _parameter(arg: ast.arg, kind: str, default: ast.expr | None) -> Parameter:
    return Parameter(arg.arg, kind, ast.unparse(default) if default else None)

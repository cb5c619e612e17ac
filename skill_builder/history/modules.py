"""One module's source, reduced to what the history asks of it: names and what they stand for.

Nothing is imported or executed.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from skill_builder.history.functions import Function, dotted, reduce_function, text_of

_NEVER = ("TYPE_CHECKING", "typing.TYPE_CHECKING", "sys.platform == 'win32'", "__name__ == '__main__'")
"""Checks that are false when a module is imported where people train."""


@dataclass(frozen=True, slots=True)
class Import:
    """A name that stands for something in another module."""

    module: str
    name: str
    """Empty when the name stands for the module itself."""
    explicit: bool = False
    """Written as ``import X as X``, which says: this is a re-export."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A name assigned from another name: ``a = b.c``."""

    target: str


@dataclass(frozen=True, slots=True)
class Value:
    """A name assigned from anything else, or only annotated."""

    value: ast.expr | None
    annotation: ast.expr | None = None


@dataclass(frozen=True, slots=True)
class Class:
    """A ``class`` statement."""

    name: str
    bases: tuple[ast.expr, ...]
    decorators: tuple[ast.expr, ...]
    doc: str
    members: dict[str, Binding]


Binding = Function | Class | Import | Reference | Value


@dataclass(slots=True)
class Module:
    """A module's names, before anything is followed into another module."""

    name: str
    is_package: bool
    names: dict[str, Binding] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    """Modules of which everything is imported, in the order of the statements."""
    exports: list[str | Reference] | None = None
    """What ``__all__`` lists; a reference stands for another module's list. None without ``__all__``."""
    redirects: dict[str, str] = field(default_factory=dict)
    """Modules that importing this one makes another name of a module: ``sys.modules["old"] = new``."""


def parse_module(name: str, source: str, *, is_package: bool) -> Module:
    """Reduce a module's source.

    Raises:
        SyntaxError: The source is not Python as the running Python knows it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        warnings.simplefilter("ignore", DeprecationWarning)  # invalid escapes, before Python 3.12
        tree = ast.parse(source, name)
    module = Module(name, is_package)
    _ModuleReader(module).read(tree.body)
    return module


def statements(body: Iterable[ast.stmt]) -> Iterator[tuple[ast.stmt, bool]]:
    """The statements that bind names, through ``if``, ``try`` and ``with``; with each, whether it gives way.

    The ``else`` of a check stands in for something that is missing: it gives way to names that the other
    branch binds. ``except`` and branches for type checkers, Windows and running as a script are left out.
    """
    for statement in body:
        if isinstance(statement, ast.If):
            yield from _branches(statement)
        elif isinstance(statement, ast.Try):
            yield from statements([*statement.body, *statement.orelse, *statement.finalbody])
        elif isinstance(statement, ast.With):
            yield from statements(statement.body)
        else:
            yield statement, False


def _branches(statement: ast.If) -> Iterator[tuple[ast.stmt, bool]]:
    test = ast.unparse(statement.test)
    first, second = statement.body, statement.orelse
    if isinstance(statement.test, ast.UnaryOp) and isinstance(statement.test.op, ast.Not):
        first, second = second, first
    if test in _NEVER:
        first, second = statement.orelse, []
    yield from statements(first)
    yield from ((inner, True) for inner, _ in statements(second))


class _Scope:
    """What module and class bodies have in common."""

    def __init__(self, names: dict[str, Binding]) -> None:
        self.names = names
        self.handlers: dict[type[ast.stmt], Callable[..., None]] = {
            ast.FunctionDef: self._function,
            ast.AsyncFunctionDef: self._function,
            ast.ClassDef: self._class,
            ast.Assign: self._assign,
            ast.AnnAssign: self._annotated,
        }

    def read(self, body: Iterable[ast.stmt]) -> None:
        for statement, gives_way in statements(body):
            if handler := self.handlers.get(type(statement)):
                handler(statement, gives_way)

    def bind(self, name: str, binding: Binding, gives_way: bool) -> None:
        if not (gives_way and name in self.names):
            self.names[name] = binding

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, gives_way: bool) -> None:
        if any(dotted(decorator).endswith((".setter", ".deleter")) for decorator in node.decorator_list):
            return
        self.bind(node.name, reduce_function(node), gives_way)

    def _class(self, node: ast.ClassDef, gives_way: bool) -> None:
        members: dict[str, Binding] = {}
        _Scope(members).read(node.body)
        members |= {slot: Value(None) for slot in _slots(members) if slot not in members}
        doc = ast.get_docstring(node) or ""
        reduced = Class(node.name, tuple(node.bases), tuple(node.decorator_list), doc, members)
        self.bind(node.name, reduced, gives_way)

    def _assign(self, node: ast.Assign, gives_way: bool) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.bind(target.id, _assigned(node.value), gives_way)

    def _annotated(self, node: ast.AnnAssign, gives_way: bool) -> None:
        if isinstance(node.target, ast.Name):
            self.bind(node.target.id, Value(node.value, node.annotation), gives_way)


class _ModuleReader(_Scope):
    """A module's body: also imports, ``__all__`` and ``sys.modules``."""

    def __init__(self, module: Module) -> None:
        super().__init__(module.names)
        self.module = module
        self.handlers |= {
            ast.Import: self._import,
            ast.ImportFrom: self._import_from,
            ast.AugAssign: self._augmented,
            ast.Expr: self._expression,
            ast.For: self._loop,
        }

    def _import(self, node: ast.Import, gives_way: bool) -> None:
        for alias in node.names:
            if alias.asname:
                self.bind(alias.asname, Import(alias.name, ""), gives_way)
            else:
                root = alias.name.partition(".")[0]
                self.bind(root, Import(root, ""), gives_way)

    def _import_from(self, node: ast.ImportFrom, gives_way: bool) -> None:
        source = self._absolute(node)
        for alias in node.names:
            if alias.name == "*":
                self.module.stars.append(source)
                continue
            explicit = alias.asname == alias.name
            self.bind(alias.asname or alias.name, Import(source, alias.name, explicit), gives_way)

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.module.name.split(".")
        up = node.level - 1 if self.module.is_package else node.level
        return ".".join([*parts[: len(parts) - up], *filter(None, [node.module])])

    def _assign(self, node: ast.Assign, gives_way: bool) -> None:
        for target in node.targets:
            if dotted(target) == "__all__":
                self.module.exports = self._exports(node.value)
            elif isinstance(target, ast.Subscript) and dotted(target.value) == "sys.modules":
                self._redirect(target.slice, node.value, {})
            elif isinstance(target, ast.Attribute) and target.attr == "__signature__":
                self._resigned(dotted(target.value), node.value)
        super()._assign(node, gives_way)

    def _resigned(self, name: str, value: ast.expr) -> None:
        """``f.__signature__ = inspect.signature(g)``: the function shows another one's parameters."""
        function = self.names.get(name)
        shown = self.names.get(dotted(value.args[0])) if isinstance(value, ast.Call) and value.args else None
        if isinstance(function, Function) and isinstance(shown, Function):
            self.names[name] = replace(function, arguments=shown.arguments)

    def _augmented(self, node: ast.AugAssign, gives_way: bool) -> None:
        if dotted(node.target) == "__all__":
            self.module.exports = [*(self.module.exports or []), *self._exports(node.value)]

    def _expression(self, node: ast.Expr, gives_way: bool) -> None:
        call = node.value
        if isinstance(call, ast.Call) and dotted(call.func) in ("__all__.extend", "__all__.append"):
            more = call.args[0] if dotted(call.func) == "__all__.extend" else ast.List(elts=call.args)
            self.module.exports = [*(self.module.exports or []), *self._exports(more)]

    def _exports(self, node: ast.expr) -> list[str | Reference]:
        if isinstance(node, ast.List | ast.Tuple):
            return [e.value for e in node.elts if isinstance(e, ast.Constant) and isinstance(e.value, str)]
        if isinstance(node, ast.BinOp):
            return [*self._exports(node.left), *self._exports(node.right)]
        if dotted(node) == "__all__":
            return list(self.module.exports or [])
        return [Reference(dotted(node).removesuffix(".__all__"))] if dotted(node).endswith("__all__") else []

    def _loop(self, node: ast.For, gives_way: bool) -> None:
        """``for name in NAMES: sys.modules[f"old.{name}"] = import_module(f"new.{name}")``."""
        self.read([s for s in node.body if not isinstance(s, ast.For)])
        if not isinstance(node.target, ast.Name):
            return
        for item in self._texts(node.iter):
            known = {node.target.id: item}
            for statement in node.body:
                if not isinstance(statement, ast.Assign):
                    continue
                target = statement.targets[0]
                if isinstance(target, ast.Subscript) and dotted(target.value) == "sys.modules":
                    self._redirect(target.slice, statement.value, known)
                elif isinstance(target, ast.Name) and (text := text_of(statement.value, known)):
                    known[target.id] = text

    def _texts(self, node: ast.expr) -> list[str]:
        bound = self.names.get(dotted(node))
        listed = bound.value if isinstance(bound, Value) else node
        if not isinstance(listed, ast.List | ast.Tuple):
            return []
        return [text for element in listed.elts if (text := text_of(element, {}))]

    def _redirect(self, old: ast.expr, new: ast.expr, known: dict[str, str]) -> None:
        if isinstance(new, ast.Call) and dotted(new.func).endswith("import_module") and new.args:
            target = text_of(new.args[0], known)
        else:
            target = dotted(new)
        if (name := text_of(old, known)) and target:
            self.module.redirects[name] = target


def _slots(members: dict[str, Binding]) -> list[str]:
    slots = members.get("__slots__")
    listed = slots.value if isinstance(slots, Value) else None
    elements = listed.elts if isinstance(listed, ast.List | ast.Tuple) else []
    return [text for element in elements if (text := text_of(element, {}))]


def _assigned(value: ast.expr) -> Binding:
    if name := dotted(value):
        return Reference(name)
    fields = _named_tuple_fields(value)
    if fields is None:
        return Value(value)
    members: dict[str, Binding] = {field: Value(None, ast.Name("Any")) for field in fields}
    return Class("", (ast.Name("NamedTuple"),), (), "", members)


def _named_tuple_fields(value: ast.expr) -> list[str] | None:
    """The fields of ``namedtuple("X", "a b")`` or ``NamedTuple("X", [("a", int)])``."""
    if not isinstance(value, ast.Call) or len(value.args) != 2 or value.keywords:
        return None
    if dotted(value.func).rpartition(".")[2] not in ("namedtuple", "NamedTuple"):
        return None
    listed = value.args[1]
    if isinstance(listed, ast.Constant) and isinstance(listed.value, str):
        return listed.value.replace(",", " ").split()
    if not isinstance(listed, ast.List | ast.Tuple):
        return None
    names = [entry.elts[0] if isinstance(entry, ast.Tuple) else entry for entry in listed.elts]
    return [name.value for name in names if isinstance(name, ast.Constant) and isinstance(name.value, str)]

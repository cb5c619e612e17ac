"""What can be called with what: the parameters of functions and of classes, from their definitions.

A signature is Python's own syntax without annotations; None stands for what the source does not show.
"""

from __future__ import annotations

import ast
import copy

from skill_builder.history.functions import Function, dotted
from skill_builder.history.modules import Binding, Class, Value
from skill_builder.history.release import Found, Release

KEEPING = (
    "abc.abstractmethod",
    "abstractmethod",
    "cache",
    "classmethod",
    "contextlib.asynccontextmanager",
    "contextlib.contextmanager",
    "contextmanager",
    "deprecated",
    "functools.cache",
    "functools.lru_cache",
    "functools.wraps",
    "lru_cache",
    "no_type_check",
    "overload",
    "staticmethod",
    "torch.enable_grad",
    "torch.no_grad",
    "typing.no_type_check",
    "typing.overload",
    "typing_extensions.deprecated",
    "wraps",
)
"""Decorators outside torch, or made of classes, whose result shows the signature of what they decorate."""

PROPERTIES = ("abc.abstractproperty", "cached_property", "functools.cached_property", "property")

_DATACLASS = ("dataclass", "dataclasses.dataclass")
_ENUMS = ("Enum", "Flag", "IntEnum", "IntFlag", "StrEnum")
_NOT_CONSTRUCTED = ("Protocol", "TypedDict")
_EMPTY = ("ABC", "Generic", "object")


def is_property(function: Function) -> bool:
    """Whether a method is read like an attribute."""
    return any(dotted(decorator) in PROPERTIES for decorator in function.decorators)


def function_signature(release: Release, found: Found, *, in_class: bool = False) -> str | None:
    """The parameters of a function or method, without ``self`` or ``cls``."""
    function = found.binding
    assert isinstance(function, Function)
    if not all(_keeps(release, found.module, decorator) for decorator in function.decorators):
        return None
    is_static = function.name != "__new__" and any(dotted(d) == "staticmethod" for d in function.decorators)
    return _text(function.arguments, drop_first=in_class and not is_static)


def class_signature(release: Release, found: Found) -> str | None:
    """The parameters with which a class is called."""
    for ancestor in release.lineage(found):
        if ancestor.binding is None or isinstance(ancestor.binding, Value):
            return _signature_without_source(ancestor)
        if not isinstance(ancestor.binding, Class):
            continue
        if (signature := _own_signature(release, ancestor)) is not _INHERITED:
            return signature
    return ""


_INHERITED = "inherited"


def _own_signature(release: Release, found: Found) -> str | None:
    assert isinstance(found.binding, Class)
    members = found.binding.members
    bases = {base.name for base in release.bases(found)}
    if bases & set(_ENUMS):
        return "value"
    if bases & set(_NOT_CONSTRUCTED):
        return None
    if "NamedTuple" in bases:
        return _fields_signature(_fields(members), set())
    makers = [name for name in ("__init__", "__new__") if name in members]
    texts = [_maker_signature(release, found, name) for name in makers]
    given = dataclass_arguments(found.binding)
    if "__init__" not in makers and given is not None and given.get("init", True):
        return dataclass_signature(release, found)
    if not texts:
        return _INHERITED
    return texts[0] if texts[0] != "*args, **kwargs" else texts[-1]


def _maker_signature(release: Release, found: Found, name: str) -> str | None:
    maker = release.member(found, name)
    if maker is None or not isinstance(maker.binding, Function):
        return None
    return function_signature(release, maker, in_class=True)


def _signature_without_source(found: Found) -> str | None:
    name = found.name.rpartition(".")[2]
    return "" if found.module in ("abc", "builtins", "typing") and name in _EMPTY else None


def _keeps(release: Release, module: str, decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    path = dotted(called)
    if path in KEEPING or path in PROPERTIES:
        return True
    found = release.follow(module, path) if path else None
    if found is None:
        return False
    return found.path in KEEPING or (isinstance(found.binding, Function) and found.binding.keeps_signature)


def _text(arguments: ast.arguments, *, drop_first: bool) -> str:
    given = copy.copy(arguments)
    if drop_first:
        if given.posonlyargs:
            given.posonlyargs = given.posonlyargs[1:]
        else:
            given.args = given.args[1:]
    return ast.unparse(given)


def dataclass_arguments(definition: Class) -> dict[str, bool] | None:
    """What the ``dataclass`` decorator is called with; None for a class without it."""
    for decorator in definition.decorators:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        if dotted(called) in _DATACLASS:
            keywords = decorator.keywords if isinstance(decorator, ast.Call) else []
            return {
                keyword.arg: bool(keyword.value.value)
                for keyword in keywords
                if keyword.arg and isinstance(keyword.value, ast.Constant)
            }
    return None


def dataclass_signature(release: Release, found: Found) -> str | None:
    """The parameters that ``dataclass`` makes of the fields of a class and of those that it inherits."""
    fields: dict[str, Value] = {}
    keyword_only: set[str] = set()
    for ancestor in reversed(release.lineage(found)):
        definition = ancestor.binding
        if not isinstance(definition, Class) or (given := dataclass_arguments(definition)) is None:
            continue
        own, marked = _dataclass_fields(definition)
        fields |= own
        keyword_only -= own.keys()
        keyword_only |= own.keys() if given.get("kw_only") else marked
    return _fields_signature([(n, v) for n, v in fields.items() if _is_passed(v)], keyword_only)


def _dataclass_fields(definition: Class) -> tuple[dict[str, Value], set[str]]:
    """The fields, and which of them can only be passed by keyword."""
    fields: dict[str, Value] = {}
    keyword_only: set[str] = set()
    after_marker = False
    for name, value in _fields(definition.members):
        if value.annotation is not None and dotted(value.annotation).rpartition(".")[2] == "KW_ONLY":
            after_marker = True
            continue
        fields[name] = value
        if after_marker or _field_argument(value, "kw_only"):
            keyword_only.add(name)
    return fields, keyword_only


def _fields(members: dict[str, Binding]) -> list[tuple[str, Value]]:
    return [
        (name, member)
        for name, member in members.items()
        if isinstance(member, Value) and member.annotation and "ClassVar" not in ast.unparse(member.annotation)
    ]


def _field_argument(value: Value, name: str) -> ast.expr | None:
    call = value.value
    if not isinstance(call, ast.Call) or dotted(call.func).rpartition(".")[2] != "field":
        return None
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def _is_passed(value: Value) -> bool:
    init = _field_argument(value, "init")
    return not (isinstance(init, ast.Constant) and init.value is False)


def _default(value: Value) -> ast.expr | None:
    call = value.value
    if not isinstance(call, ast.Call) or dotted(call.func).rpartition(".")[2] != "field":
        return call
    factory = _field_argument(value, "default_factory")
    if isinstance(factory, ast.Lambda):
        return factory.body
    if factory is not None:
        return ast.Call(func=factory, args=[], keywords=[])
    return _field_argument(value, "default")


def _fields_signature(fields: list[tuple[str, Value]], keyword_only: set[str]) -> str:
    plain = [(name, _default(value)) for name, value in fields if name not in keyword_only]
    named = [(name, _default(value)) for name, value in fields if name in keyword_only]
    arguments = ast.arguments(
        posonlyargs=[],
        args=[ast.arg(arg=name) for name, _ in plain],
        defaults=[default for _, default in plain if default is not None],
        kwonlyargs=[ast.arg(arg=name) for name, _ in named],
        kw_defaults=[default for _, default in named],
    )
    return ast.unparse(arguments)

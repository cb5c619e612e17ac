"""What the installed torch has, by importing it and asking ``inspect``. Run by test_history.py.

Reads a JSON list of dotted names from stdin and prints

    {"version": "2.13.0", "failed": {module: why it cannot be imported},
     "asked": {name: object, or null where there is none},
     "public": {module: {name: object}}}

An object is {"kind", "made": how a class is made, if not in the ordinary way, "members": {name: object},
"parameters": [[name, kind, has a default, [the default, if it is a literal]]] or null}.
"""

import enum
import importlib
import inspect
import json
import pkgutil
import sys
import warnings

from skill_builder.history.reach import PACKAGES, PRIVATE_PACKAGES, is_ours, is_read

LITERALS = (bool, int, float, str, type(None))


def module_names():
    for root in PACKAGES + PRIVATE_PACKAGES:
        try:
            package = importlib.import_module(root)
        except ModuleNotFoundError:
            continue
        yield root
        for info in pkgutil.walk_packages(getattr(package, "__path__", []), root + ".", onerror=lambda name: None):
            if is_read(info.name):
                yield info.name


def is_public(module, name, value):
    if name in getattr(module, "__all__", ()):
        return True
    if name.startswith("_") or not (inspect.isclass(value) or inspect.isroutine(value)):
        return False
    home = getattr(value, "__module__", None) or ""
    if home == module.__name__:
        return True
    return hasattr(module, "__path__") and not hasattr(module, "__all__") and is_ours(home)


def described(kind, parameters=None, members=None, made=""):
    return {"kind": kind, "made": made, "parameters": parameters, "members": members or {}}


def describe(value):
    if inspect.ismodule(value):
        return described("module")
    if inspect.isclass(value):
        return described("class", parameters_of(value), members_of(value), how_made(value))
    if inspect.isroutine(value):
        return described("routine", parameters_of(value), made="C++" if inspect.isbuiltin(value) else "")
    return described("value")


def how_made(cls):
    if issubclass(cls, enum.Enum):
        return "enum"
    if getattr(cls, "_is_protocol", False):
        return "protocol"
    if any(owner.__module__.startswith("torch._C") or type(owner).__name__ == "pybind11_type" for owner in cls.__mro__):
        return "C++"
    return "exception" if issubclass(cls, BaseException) else ""


def parameters_of(value):
    try:
        signature = inspect.signature(value)
    except (ValueError, TypeError):
        return None
    return [describe_parameter(parameter) for parameter in signature.parameters.values()]


def describe_parameter(parameter):
    has_default = parameter.default is not inspect.Parameter.empty
    literal = [parameter.default] if type(parameter.default) in LITERALS else []
    return [parameter.name, parameter.kind.name, has_default, literal]


def members_of(cls):
    names = {}
    for owner in cls.__mro__:
        if is_ours(owner.__module__):
            names |= dict.fromkeys([*vars(owner), *vars(owner).get("__annotations__", {})])
    if issubclass(cls, enum.Enum):
        names |= dict.fromkeys(cls.__members__)
    return {name: describe_member(cls, name) for name in names if not name.startswith("_")}


def describe_member(cls, name):
    static = inspect.getattr_static(cls, name, None)
    if isinstance(static, property) or type(static).__name__ == "cached_property":
        return described("property")
    if isinstance(static, staticmethod | classmethod):
        return describe(static.__get__(None, cls))
    member = describe(static)
    if member["kind"] == "routine" and member["parameters"]:
        member["parameters"] = member["parameters"][1:]
    return member


def ask(name):
    """What ``from a.b import c`` gives, or a class's member: the longest module, then attributes."""
    parts = name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        return follow(value, parts[length:]) or ask_module(name)
    return ask_module(name)


def ask_module(name):
    try:
        return describe(importlib.import_module(name))
    except ModuleNotFoundError:
        return None


def follow(value, attributes):
    for position, attribute in enumerate(attributes):
        if inspect.isclass(value) and position == len(attributes) - 1:
            return members_of(value).get(attribute)
        if not hasattr(value, attribute):
            return None
        value = getattr(value, attribute)
    return describe(value)


def main():
    asked = {name: ask(name) for name in json.load(sys.stdin)}
    failed, public = {}, {}
    for name in sorted(set(module_names())):
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            failed[name] = str(error)
            continue
        values = {n: getattr(module, n) for n in {*dir(module), *getattr(module, "__all__", ())} if hasattr(module, n)}
        offered = {n: value for n, value in values.items() if is_public(module, n, value)}
        public[name] = {n: describe(value) for n, value in offered.items() if not inspect.ismodule(value)}
    version = importlib.import_module("torch").__version__.partition("+")[0]
    json.dump({"version": version, "failed": failed, "asked": asked, "public": public}, sys.stdout)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()

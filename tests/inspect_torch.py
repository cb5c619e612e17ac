"""What the installed torch offers, by importing it and asking ``inspect``: prints JSON. Run by test_history.py.

    {"version": "2.13.0", "failed": {module: why it cannot be imported}, "modules": {module: {name: object}}}

An object is {"kind", "parameters": [[name, kind, has a default, [the default, if it is a literal]]] or null,
"members": {name: object}}; only classes have members.
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
        if importlib.util.find_spec(root) is None:
            continue
        yield root
        package = importlib.import_module(root)
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


def described(kind, parameters=None, members=None):
    return {"kind": kind, "parameters": parameters, "members": members or {}}


def describe(value):
    if inspect.isclass(value):
        return described("class", parameters_of(value), members_of(value))
    if inspect.isroutine(value):
        return described("routine", parameters_of(value))
    return described("value")


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


def main():
    failed, modules = {}, {}
    for name in sorted(set(module_names())):
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            failed[name] = str(error)
            continue
        values = {n: getattr(module, n) for n in {*dir(module), *getattr(module, "__all__", ())} if hasattr(module, n)}
        public = {n: value for n, value in values.items() if is_public(module, n, value)}
        modules[name] = {n: describe(value) for n, value in public.items() if not inspect.ismodule(value)}
    version = importlib.import_module("torch").__version__.partition("+")[0]
    json.dump({"version": version, "failed": failed, "modules": modules}, sys.stdout)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()

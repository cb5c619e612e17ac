"""One release's sources: names are followed from module to module, and classes up to their bases."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from skill_builder.history.functions import Function, dotted
from skill_builder.history.modules import Binding, Class, Import, Module, Reference, Value, parse_module

ReadSource = Callable[[str], tuple[str, bool] | None]
"""Gives a module's source and whether it is a package; None for a module without a Python source."""


@dataclass(frozen=True, slots=True)
class Found:
    """Where a name leads to in the end."""

    module: str
    name: str
    """Empty for a module. Dotted for what stands in a class."""
    binding: Function | Class | Value | None = None
    """None for a module, and for what the release has no Python source of."""

    @property
    def path(self) -> str:
        """The place of the definition."""
        return f"{self.module}.{self.name}" if self.name else self.module

    @property
    def is_module(self) -> bool:
        """Whether the name leads to a module."""
        return not self.name


class Release:
    """Follows names through the sources of one release. Modules are read when they are first asked for."""

    def __init__(self, read_source: ReadSource) -> None:
        self._read_source = read_source
        self._modules: dict[str, Module | None] = {}

    def module(self, name: str) -> Module | None:
        """A module's names; None when the release has no source of it."""
        if name not in self._modules:
            found = self._read_source(name)
            self._modules[name] = parse_module(name, found[0], is_package=found[1]) if found else None
        return self._modules[name]

    def exports(self, module: Module) -> list[str] | None:
        """What ``__all__`` lists, with other modules' lists filled in; None without ``__all__``."""
        if module.exports is None:
            return None
        names: list[str] = []
        for entry in module.exports:
            if isinstance(entry, str):
                names.append(entry)
            elif (found := self.follow(module.name, entry.target)) and (other := self.module(found.module)):
                names += self.exports(other) or []
        return list(dict.fromkeys(names))

    def follow(self, module: str, path: str, seen: frozenset[tuple[str, str]] = frozenset()) -> Found | None:
        """Where a dotted path leads that is written in a module; None when the sources do not say.

        Args:
            module: The module in which the path is written.
            path: Such as ``DTensor``, ``api.__all__`` or ``torch.amp.GradScaler``.
            seen: Steps taken so far; a path that leads back to one of them leads nowhere.
        """
        if (module, path) in seen:
            return None
        seen |= {(module, path)}
        head, _, rest = path.partition(".")
        found = self._one_step(module, head, seen)
        while found and rest:
            head, _, rest = rest.partition(".")
            found = self._inside(found, head, seen)
        return found

    def _inside(self, found: Found, name: str, seen: frozenset[tuple[str, str]]) -> Found | None:
        if found.is_module:
            return self.follow(found.module, name, seen)
        if not isinstance(found.binding, Class):
            return Found(found.module, f"{found.name}.{name}") if found.binding is None else None
        return self.member(found, name)

    def _one_step(self, module: str, name: str, seen: frozenset[tuple[str, str]]) -> Found | None:
        source = self.module(module)
        if f"{module}.{name}" == "torch._C":
            return Found("torch._C", "")  # compiled: no source of it is there to be found
        if source is None:
            return Found(module, name)
        if (binding := source.names.get(name)) is not None:
            return self._bound(module, name, binding, seen)
        if self.module(f"{module}.{name}"):
            return Found(f"{module}.{name}", "")
        for star in reversed(source.stars):
            if (starred := self.module(star)) and name in self.star_names(starred):
                return self.follow(star, name, seen)
        return None

    def _bound(self, module: str, name: str, binding: Binding, seen: frozenset[tuple[str, str]]) -> Found | None:
        if isinstance(binding, Reference):
            return self.follow(module, binding.target, seen)
        if isinstance(binding, Value):
            return self._decorated(module, name, binding, seen) or Found(module, name, binding)
        if not isinstance(binding, Import):
            return Found(module, name, binding)
        if not binding.name:
            return Found(binding.module, "")
        if binding.module == module:
            return Found(f"{module}.{binding.name}", "")
        return self.follow(binding.module, binding.name, seen)

    def _decorated(self, module: str, name: str, binding: Value, seen: frozenset[tuple[str, str]]) -> Found | None:
        """``old = deprecated("...")(new)``: the new function, decorated."""
        call = binding.value
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Call) or len(call.args) != 1:
            return None
        found = self.follow(module, dotted(call.args[0]), seen)
        if found is None or not isinstance(found.binding, Function):
            return None
        return Found(module, name, replace(found.binding, decorators=(call.func, *found.binding.decorators)))

    def star_names(self, module: Module) -> list[str]:
        """What ``from module import *`` brings."""
        exported = self.exports(module)
        if exported is not None:
            return exported
        names = [name for name in module.names if not name.startswith("_")]
        for star in module.stars:
            if starred := self.module(star):
                names += self.star_names(starred)
        return names

    def member(self, found: Found, name: str) -> Found | None:
        """A class's own member; None when the class statement does not bind the name."""
        assert isinstance(found.binding, Class)
        binding = found.binding.members.get(name)
        if isinstance(binding, Reference):
            own = found.binding.members.get(binding.target)
            if isinstance(own, Function | Class | Value):
                return Found(found.module, f"{found.name}.{name}", own)
            return self.follow(found.module, binding.target) or Found(found.module, f"{found.name}.{name}")
        if binding is None or isinstance(binding, Import):
            return None
        return Found(found.module, f"{found.name}.{name}", binding)

    def bases(self, found: Found) -> list[Found]:
        """The classes that a class statement names; one that the sources do not lead to has no binding."""
        assert isinstance(found.binding, Class)
        return [self._base(found.module, base) for base in found.binding.bases]

    def _base(self, module: str, base: ast.expr) -> Found:
        expression = base.value if isinstance(base, ast.Subscript) else base
        if isinstance(expression, ast.Call):
            return Found(module, ast.unparse(expression), Value(expression))
        path = dotted(expression)
        known = self.follow(module, path)
        return known if known else Found("builtins", path or ast.unparse(base))

    def lineage(self, found: Found) -> list[Found]:
        """A class and all that it inherits from, in the order in which Python looks names up (C3)."""
        if not isinstance(found.binding, Class):
            return [found]
        parents = [base for base in self.bases(found) if base.path != found.path]
        return [found, *_merge([*(self.lineage(parent) for parent in parents), parents])]


def _merge(orders: list[list[Found]]) -> Iterator[Found]:
    """C3: of the first entries of all orders the first one that no order has further back."""
    rest = [order for order in orders if order]
    while rest:
        behind = {found.path for order in rest for found in order[1:]}
        candidates = [order[0] for order in rest if order[0].path not in behind]
        chosen = candidates[0] if candidates else rest[0][0]
        yield chosen
        rest = [kept for order in rest if (kept := [f for f in order if f.path != chosen.path])]

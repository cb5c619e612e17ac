"""A release's sources, read into a fact for each public name."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from skill_builder.history.deprecations import Notice, notices, replacements
from skill_builder.history.facts import Fact, Snapshot, parameters_of
from skill_builder.history.functions import Function
from skill_builder.history.modules import Class, Import, Module, Reference, Value
from skill_builder.history.reach import (
    HOMES,
    PRIVATE_NAMES,
    WINDOWS,
    is_below,
    is_bound,
    is_ours,
    is_read,
)
from skill_builder.history.release import Found, Release
from skill_builder.history.signatures import class_signature, function_signature, is_property

_COMMANDS = ("torchrun",)
"""What deprecations recommend that is not Python."""


@dataclass(frozen=True, slots=True)
class _Path:
    """One of the ways by which users reach an object."""

    module: str
    name: str
    listed: bool
    """Whether an ``__all__`` lists it."""

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


def take_snapshot(
    version: str,
    release: Release,
    modules: list[str],
    progress: Callable[[str, int, int], None] | None = None,
) -> Snapshot:
    """Read every public name of the modules in scope.

    Args:
        version: The release's full version.
        release: Its sources.
        modules: Names of all its modules.
        progress: Called with ``"reading"``, how many modules are done, and of how many.
    """
    reader = _Reader(release)
    scope = [name for name in sorted(modules) if is_read(name) or name in WINDOWS]
    for done, name in enumerate(scope):
        reader.read_module(name)
        if progress:
            progress("reading", done + 1, len(scope))
    facts = reader.facts()
    besides = {name: place for name, place in reader.besides() if name not in facts}
    return Snapshot(version, dict(sorted(facts.items())), dict(sorted(besides.items())))


class _Reader:
    def __init__(self, release: Release) -> None:
        self.release = release
        self.paths: dict[str, list[_Path]] = defaultdict(list)
        """By the place of the definition: every way to it."""
        self.found: dict[str, Found] = {}
        self.modules: list[str] = []
        self.redirects: dict[str, str] = {}

    def read_module(self, name: str) -> None:
        module = self.release.module(name)
        assert module is not None
        self.redirects |= module.redirects
        if is_read(name):
            self.modules.append(name)
        for public, listed in self._public_names(module).items():
            found = self.release.follow(name, public)
            if found is None and "__getattr__" in module.names and is_read(name):
                found = Found(name, public)
            if found is None or found.is_module or not self._belongs(name, found, listed):
                continue
            self.found[found.path] = found
            self.paths[found.path].append(_Path(name, public, listed))

    @staticmethod
    def _belongs(module: str, found: Found, listed: bool) -> bool:
        """Whether what a module offers is of interest: ours, or at least listed there, or made in C++."""
        return is_ours(found.module) or (is_read(module) and (listed or is_below(found.module, "torch._C")))

    def _public_names(self, module: Module) -> dict[str, bool]:
        """The names that a module offers, each with whether an ``__all__`` lists it."""
        private = [path.rpartition(".") for path in PRIVATE_NAMES]
        names = {name: False for owner, _, name in private if owner == module.name}
        exported = self.release.exports(module)
        offered = self._is_defined if exported is not None else self._is_offered
        names |= {name: False for name in module.names if not name.startswith("_") and offered(module, name)}
        if exported is not None:
            return names | dict.fromkeys(exported, True)
        for star in module.stars:
            starred = self.release.module(star)
            if starred is not None:
                listed = starred.exports is not None
                names |= {name: listed for name in self.release.star_names(starred) if not name.startswith("_")}
        return names

    @staticmethod
    def _is_defined(module: Module, name: str) -> bool:
        """Whether a module with ``__all__`` has a name as its own beside those that are listed."""
        binding = module.names[name]
        if isinstance(binding, Import):
            return module.is_package and is_bound(binding.module)
        return isinstance(binding, Function | Class)

    def _is_offered(self, module: Module, name: str) -> bool:
        """Whether a module without ``__all__`` offers a name, or only uses it itself.

        Packages offer what they import, and so does a module that has nothing of its own: it is there for old
        names.
        """
        binding = module.names[name]
        if isinstance(binding, Function | Class):
            return True
        if isinstance(binding, Import):
            is_shim = not any(isinstance(own, Function | Class) for own in module.names.values())
            follows = module.is_package or binding.explicit or is_shim
            return follows and (is_ours(binding.module) or is_below(binding.module, "torch._C"))
        found = self.release.follow(module.name, name)
        if found is None or isinstance(found.binding, Value):
            return False
        return isinstance(binding, Reference) and (is_ours(found.module) or is_below(found.module, "torch._C"))

    def besides(self) -> Iterator[tuple[str, str]]:
        """What is there without being offered, and its place."""
        yield from self._imports()
        for place, found in self.found.items():
            for ancestor in self.release.lineage(found)[1:]:
                if isinstance(ancestor.binding, Class) and not is_ours(ancestor.module):
                    yield from ((f"{self.names[place]}.{m}", f"{ancestor.path}.{m}") for m in _public(ancestor))

    def _imports(self) -> Iterator[tuple[str, str]]:
        for owner in self.modules:
            module = self.release.module(owner)
            assert module is not None
            for name, binding in module.names.items():
                found = self.release.follow(owner, name) if isinstance(binding, Import) else None
                if found and not found.is_module and not name.startswith("_"):
                    yield f"{owner}.{name}", self._known(found) or found.path

    def facts(self) -> dict[str, Fact]:
        facts = {name: Fact("module") for name in self.modules}
        facts |= {
            old: Fact("alias", target=new)
            for old, new in self.redirects.items()
            if is_read(old) and self.release.module(new)
        }
        self.names = {place: min(paths, key=self._rank) for place, paths in self.paths.items()}
        for place, found in self.found.items():
            chosen = str(self.names[place])
            facts[chosen] = self._object(chosen, found)
            facts |= self._members(chosen, found)
            for path in self.paths[place]:
                if str(path) != chosen:
                    facts[str(path)] = Fact("alias", target=chosen)
        return facts

    @staticmethod
    def _rank(path: _Path) -> tuple[object, ...]:
        """The path that users write comes first: at its documented home, public, short, listed."""
        at_home = path.module in HOMES
        return (not at_home, "._" in path.module, str(path).count("."), not path.listed, str(path))

    def _object(self, name: str, found: Found) -> Fact:
        binding = found.binding
        place = "" if found.path == name else found.path
        if isinstance(binding, Function):
            signature = function_signature(self.release, found)
            return self._with_notices(Fact("function", signature, place), found)
        if isinstance(binding, Class):
            bases = tuple(self._named_bases(found))
            fact = Fact("class", class_signature(self.release, found), place, bases)
            return self._with_notices(fact, found)
        return Fact("unknown" if binding is None else "value", target=place)

    def _named_bases(self, found: Found) -> Iterator[str]:
        for ancestor in self.release.lineage(found)[1:]:
            if ancestor.path in self.names:
                yield str(self.names[ancestor.path])
            elif is_bound(ancestor.path):
                yield ancestor.path

    def _members(self, name: str, found: Found) -> dict[str, Fact]:
        """The public members of a class, but for those that looking in its bases finds all the same."""
        if not isinstance(found.binding, Class):
            return {}
        lineage = [f for f in self.release.lineage(found) if isinstance(f.binding, Class) and is_ours(f.module)]
        facts: dict[str, Fact] = {}
        for member in dict.fromkeys(m for f in lineage for m in _public(f)):
            owner = next(f for f in lineage if member in _public(f))
            named = [f for f in lineage[1:] if f.path in self.names and member in self._effective(f)]
            if owner.path != found.path and named and self._owner(named[0], member) == owner.path:
                continue
            inner = self.release.member(owner, member)
            if inner is not None:
                facts |= self._member(f"{name}.{member}", inner)
        return facts

    def _effective(self, found: Found) -> set[str]:
        lineage = [f for f in self.release.lineage(found) if isinstance(f.binding, Class) and is_ours(f.module)]
        return {member for f in lineage for member in _public(f)}

    def _owner(self, found: Found, member: str) -> str:
        lineage = [f for f in self.release.lineage(found) if isinstance(f.binding, Class) and is_ours(f.module)]
        return next(f.path for f in lineage if member in _public(f))

    def _member(self, name: str, found: Found) -> dict[str, Fact]:
        binding = found.binding
        if isinstance(binding, Class):
            return {name: self._object(name, found), **self._members(name, found)}
        if isinstance(binding, Function):
            if is_property(binding):
                return {name: self._with_notices(Fact("property"), found)}
            signature = function_signature(self.release, found, in_class=True)
            return {name: self._with_notices(Fact("method", signature), found)}
        return {name: Fact("attribute" if binding is not None else "unknown")}

    def _with_notices(self, fact: Fact, found: Found) -> Fact:
        said = notices(self.release, found, fact.signature)
        own = [notice for notice in said if not notice.subject]
        subjects = sorted({notice.subject for notice in said if notice.subject})
        names = [parameter.name for parameter in parameters_of(fact.signature or "")]
        deprecated = self._replacement(found, own, names) if own else None
        parameters = [(s, self._replacement(found, [n for n in said if n.subject == s], names)) for s in subjects]
        return replace(fact, deprecated=deprecated, deprecated_parameters=tuple(parameters))

    def _replacement(self, found: Found, said: list[Notice], parameters: list[str]) -> str:
        """The first replacement that the texts name, by the path that users write where it leads anywhere."""
        for notice in said:
            for stated in replacements(notice.text):
                if resolved := self._resolve(found, stated, notice.subject, parameters):
                    return resolved
        return ""

    def _resolve(self, found: Found, stated: str, subject: str, parameters: list[str]) -> str:
        """The path that users write for a stated name.

        A name that leads nowhere is kept as it is stated if it is a parameter beside the deprecated one, or
        looks like a name; another may be a word of the sentence, and gives an empty text.
        """
        if subject and stated in parameters:
            return stated
        owner = found.name.rpartition(".")[0]
        places = [(found.module, f"{owner}.{stated}" if owner else stated), (found.module, stated)]
        if stated.startswith("torch."):
            places = [("torch", stated.removeprefix("torch."))]
        for module, path in places:
            reached = self.release.follow(module, path)
            if reached and (known := self._known(reached)):
                return known
        namesakes = {str(path) for path in self.names.values() if path.name == stated}
        if len(namesakes) == 1:
            return namesakes.pop()
        return stated if re.search(r"[._]", stated) or stated in _COMMANDS else ""

    def _known(self, found: Found) -> str:
        """The path that users write for a definition or a member of it; empty for what is not offered."""
        if found.path in self.names:
            return str(self.names[found.path])
        outer, _, member = found.path.rpartition(".")
        return f"{self.names[outer]}.{member}" if outer in self.names else ""


def _public(found: Found) -> list[str]:
    assert isinstance(found.binding, Class)
    return [name for name in found.binding.members if not name.startswith("_")]

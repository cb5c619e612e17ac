#!/usr/bin/env python3
"""Find mistakes in distributed PyTorch training code by reading it; nothing is run.

    lint_fsdp.py [--fix] [--torch 2.6] [--json | --sarif] PATH...
    lint_fsdp.py --explain FSDP012

A line that ends in ``# noqa: FSDP012`` is left alone. Needs Python 3.8 and nothing else.
Exit status: 0 clean, 1 findings, 2 wrong usage.

A rule is a function from a Module to Hits; its docstring, why and what to do, is what the user reads. It says nothing
where it cannot see enough of the program. FSDP1 is FullyShardedDataParallel, FSDP2 is fully_shard.
"""
# ruff: noqa: ANN401, B905, D403 - nodes of any type; Python 3.8; names of PyTorch in their own case

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ERROR, WARNING, NOTE = "error", "warning", "note"
OLDEST, NEWEST = (2, 6), (2, 14)
"""The releases of torch that HISTORY covers; without --torch, code is taken to be for all of them."""
SKIPPED_FOLDERS = {"__pycache__", "node_modules", "site-packages", "venv"}
STDIN = Path("-")
MAX_PASSES = 8
"""Rounds of mending, each of which may bring up something more to mend."""


class Edit(NamedTuple):
    """A replacement of bytes of the file's UTF-8 text."""

    start: int
    end: int
    new: str


class Hit(NamedTuple):
    """What a rule finds: ``about`` names the culprit, ``fix`` stands in for the docstring's."""

    node: Any
    about: str = ""
    fix: str = ""
    edits: tuple[Edit, ...] = ()


class Rule(NamedTuple):
    """A check, and what its docstring says."""

    code: str
    name: str
    level: str
    default: bool
    check: Callable[[Module], Iterable[Hit]]
    why: str
    fix: str


class Finding(NamedTuple):
    """A hit and its place: lines and columns count from 1, columns in characters."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    code: str
    rule: str
    level: str
    message: str
    fix: str
    edits: tuple[Edit, ...] = ()


RULES: dict[str, Rule] = {}


def rule(number: int, level: str, default: bool = True) -> Callable[..., Any]:
    """Add a check to the rules."""

    def add(check: Callable[[Module], Iterable[Hit]]) -> Callable[[Module], Iterable[Hit]]:
        why, fix = (" ".join(part.split()) for part in (check.__doc__ or "").split("\n\n"))
        code = f"FSDP{number:03}"
        RULES[code] = Rule(code, check.__name__.replace("_", "-"), level, default, check, why, fix)
        return check

    return add


# --- a parsed file ---------------------------------------------------------------------------------------------

PLACES = (
    ("torch.distributed.checkpoint.", "dcp."),
    ("torch.distributed.fsdp.", "fsdp."),
    ("torch.distributed._composable.", "fsdp."),
    ("torch.distributed.nn.", "dist.nn."),
    ("torch.distributed._functional_collectives.", "functional."),
    ("torch.distributed.", "dist."),
    ("torch.nn.parallel.", "nn."),
    ("torch.nn.utils.", "utils."),
    ("torch.optim.", "optim."),
    ("torch.utils.data.", "data."),
    ("torch.amp.", "amp."),
    ("torch.cuda.amp.", "amp."),
)
"""Torch defines, exports and documents a name in different modules; the rules know it by one."""
FSDP1, FSDP2, DDP = "fsdp.FullyShardedDataParallel", "fsdp.fully_shard", "nn.DistributedDataParallel"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
EXITS = (ast.Return, ast.Raise, ast.Continue, ast.Break)
RANK = re.compile(r"(global_|world_|local_)?rank", re.I)
ONE_RANK = re.compile(r"is_((local_|world_)?(main|master)(_process|_rank)?|rank_?(zero|0)|global_zero)|master_process")
RANKISH = re.compile(r"rank|is_(main|master|global_zero|primary|leader)|(main|master)_process|process_index", re.I)
GUARDED = re.compile(
    r"version|after|hasattr|isinstance|available|is_torch|torch_(\d|major)|greater|TYPE_CHECKING", re.I
)
"""Words of a test that lets code for another torch, or another kind of model, stand beside."""
EVALUATION = re.compile("val|test", re.I)


class Wrap(NamedTuple):
    """A call that shards or replicates a model, and the names that the model has."""

    kind: str
    names: list[str]
    call: Any


class Module:
    """A file: its nodes by type, in source order, each with ``parent``, ``field`` and ``scope``, its function.

    Args:
        path: Shown in findings.
        text: The source.
        torch: The release it is for; None for each from OLDEST to NEWEST.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: Python cannot parse the text.
    """

    def __init__(self, path: str, text: str, torch: tuple[int, int] | None = None) -> None:
        self.path, self.torch, self.data = path, torch, text.encode()
        self.lines = re.split("\r\n|\r|\n", text)
        self.starts_of_lines = [0, *(m.end() for m in re.finditer(b"\r\n|\r|\n", self.data))]
        self.tree: Any = ast.parse(text)
        self.nodes: dict[type, list[Any]] = defaultdict(list)
        self.bindings: dict[tuple[Any, str], str] = {}
        self.assigned: dict[str, list[Any]] = defaultdict(list)
        self.words: set[str] = set()
        self.calls: dict[str, list[Any]] = defaultdict(list)
        self.methods: dict[str, list[Any]] = defaultdict(list)
        self._index()
        self._bind()
        for call in self.nodes[ast.Call]:
            self.calls[self.name(call.func)].append(call)
            if isinstance(call.func, ast.Attribute):
                self.methods[call.func.attr].append(call)
        self.wraps = [self._wrap(kind, call) for kind in (FSDP1, FSDP2, DDP) for call in self.calls[kind]]
        self.starts = self.calls["dist.init_process_group"]
        self.function_names = {function.name for function in self.nodes[ast.FunctionDef]}
        self.is_script = any(map(self._runs, self.tree.body)) and not self.has("TestCase", "pytest", "run_tests")
        self.is_script &= bool(self.starts)
        loops = [self.loop_of(call) for call in self.methods["backward"]]
        self.training_loops = [loop for loop in loops if loop]
        self.trains = self.is_script and bool(self.training_loops)

    def _index(self) -> None:
        stack: list[Any] = [(self.tree, None, "", None)]
        while stack:
            node, parent, field, scope = stack.pop()
            node.parent, node.field, node.scope = parent, field, scope
            self.nodes[type(node)].append(node)
            self.words.add(own_word(node))
            inner = node if isinstance(node, (ast.Module, *FUNCTIONS)) else scope
            for name in reversed(node._fields):
                value = getattr(node, name, None)
                if isinstance(value, list):
                    stack += [(child, node, name, inner) for child in reversed(value) if isinstance(child, ast.AST)]
                elif isinstance(value, ast.AST) and value._fields:
                    stack.append((value, node, name, inner))

    def _bind(self) -> None:
        for node in self.nodes[ast.Import] + self.nodes[ast.ImportFrom]:
            origin = "." * getattr(node, "level", 0) + f"{getattr(node, 'module', '') or ''}."
            for alias in node.names:
                top = alias.name.partition(".")[0]
                if isinstance(node, ast.ImportFrom):
                    self.bindings[node.scope, alias.asname or alias.name] = origin + alias.name
                else:
                    self.bindings[node.scope, alias.asname or top] = alias.name if alias.asname else top
        for node in self.nodes[ast.Assign] + self.nodes[ast.AnnAssign] + self.nodes[ast.NamedExpr]:
            for target in getattr(node, "targets", None) or [node.target]:
                self._assign(target, node.value)
        for node in self.nodes[ast.withitem]:
            self._assign(node.optional_vars, node.context_expr)
        for node in self.nodes[ast.For] + self.nodes[ast.AugAssign]:
            self._assign(node.target, node)
        for node in self.nodes[ast.Name] + self.nodes[ast.arg]:
            if not isinstance(getattr(node, "ctx", None), ast.Load):
                self.bindings.setdefault((node.scope, getattr(node, "id", None) or node.arg), "")
        for node in self.nodes[ast.FunctionDef] + self.nodes[ast.ClassDef]:
            self.bindings.setdefault((node.scope, node.name), "")

    def _assign(self, target: Any, value: Any) -> None:
        for element in getattr(target, "elts", ()):
            self._assign(element, target)
        if value is not None and path_of(target):
            self.assigned[path_of(target)].append(value)
            if isinstance(target, ast.Name) and self.raw(value):
                self.bindings.setdefault((target.scope, target.id), self.raw(value))

    def _wrap(self, kind: str, call: Any) -> Wrap:
        targets = call.parent.targets if isinstance(call.parent, ast.Assign) else []
        return Wrap(kind, [p for p in map(path_of, [argument(call, "module", 0), *targets]) if p], call)

    def _runs(self, statement: Any) -> bool:
        """Whether a statement of the file itself starts the program."""
        if isinstance(statement, ast.If):
            return "__name__" in words(statement.test)
        call = getattr(statement, "value", None)
        return isinstance(call, ast.Call) and (call in self.starts or path_of(call.func) in self.function_names)

    # names

    def raw(self, node: Any) -> str:
        """The dotted name of an expression, through imports; empty for what is made in the file."""
        first, dot, rest = path_of(node).partition(".")
        scope = node.scope if first else None
        while scope is not None and (scope, first) not in self.bindings:
            scope = scope.scope
        origin = self.bindings[scope, first] if scope else first
        return origin + dot + rest if origin else ""

    def name(self, node: Any) -> str:
        """As ``raw``, but under the one name that PLACES gives it."""
        raw = self.raw(node)
        for prefix, short in PLACES:
            if raw.startswith(prefix):
                return short + raw.rpartition(".")[2]
        return "amp.autocast" if raw == "torch.autocast" else raw

    def has(self, *names: str) -> bool:
        """Whether the file uses any of the names, of whatever they are."""
        return not self.words.isdisjoint(names)

    def call_sites(self, function: Any) -> list[Any]:
        """Where the file calls a function of its own, but for itself."""
        names = (f"self.{function.name}", function.name)
        return [c for c in self.nodes[ast.Call] if path_of(c.func) in names and c.scope is not function]

    def origins(self, node: Any) -> list[Any]:
        """The expressions that a name was given; the expression itself if it is no such name."""
        return self.assigned.get(path_of(node)) or [node]

    def found(self, *names: str) -> list[Any]:
        """Calls of any of these names."""
        return [call for name in names for call in self.calls.get(name, ())]

    def is_model(self, node: Any, kind: str) -> bool:
        """Whether an expression surely is a model that is wrapped in this way and no other."""
        path = path_of(node)
        wraps = [w for w in self.wraps if path in w.names]
        mixed = self.has("FullyShardedDataParallel") and self.has("fully_shard")
        seen = not mixed or any(w.call.scope is node.scope for w in wraps)
        return bool(wraps) and seen and {w.kind for w in wraps} == {kind} and not self.is_guarded(node)

    def on(self, kind: str, method: str) -> list[Any]:
        """Calls of a method on models that are wrapped in this way."""
        return [call for call in self.methods[method] if self.is_model(call.func.value, kind)]

    # order

    def up(self, node: Any) -> Iterator[Any]:
        """The node, its parent and so on, up to the function's own statement."""
        while node.parent and not isinstance(node, FUNCTIONS):
            yield node
            node = node.parent

    def loop_of(self, node: Any) -> Any:
        """The innermost loop that a node is in the body of."""
        return next((n.parent for n in self.up(node) if isinstance(n.parent, LOOPS) and n.field == "body"), None)

    def before(self, first: Any, second: Any) -> bool:
        """Whether one run can pass both, in this order, in the same function."""
        if first.scope is not second.scope or place(first) >= place(second):
            return False
        around = {node.parent: node for node in self.up(second)}
        for node in self.up(first):
            if node.parent in around:
                fields = {node.field, around[node.parent].field}
                return fields not in ({"body", "orelse"}, {"body", "handlers"}, {"cases"})
            branch = getattr(node.parent, node.field) if isinstance(node.parent, ast.If) else None
            if isinstance(branch, list) and isinstance(branch[-1], EXITS):
                return False
        return True

    def guards(self, node: Any) -> Iterator[tuple[Any, bool]]:
        """The tests that a node stands behind, with the answer that leads to it."""
        for inner in self.up(node):
            if isinstance(inner.parent, (ast.If, ast.IfExp)) and inner.field != "test":
                yield inner.parent.test, inner.field == "body"
            block = getattr(inner.parent, inner.field)
            for earlier in block[: block.index(inner)] if isinstance(block, list) else ():
                if isinstance(earlier, ast.If) and isinstance(earlier.body[-1], (ast.Return, ast.Continue)):
                    yield earlier.test, False

    def is_guarded(self, node: Any) -> bool:
        """Whether a test of versions or types stands before a node, so that not every run comes to it."""
        return any(GUARDED.search(word) for test, _ in self.guards(node) for word in words(test))

    # ranks

    def rank_of(self, node: Any, depth: int = 4) -> str:
        """RANK or LOCAL_RANK for what surely is that, ``?`` for what has a rank's name, otherwise empty."""
        if isinstance(node, ast.IfExp):
            return self.rank_of(node.body, depth) or self.rank_of(node.orelse, depth)
        if isinstance(node, (ast.Call, ast.Subscript)):
            inside = list(words(node))
            if {"environ", "getenv"}.intersection(inside):
                return next((word for word in inside if word in ("RANK", "LOCAL_RANK")), "")
            plain = isinstance(node, ast.Call) and not node.args and not node.keywords
            return "RANK" if plain and self.name(node.func) == "dist.get_rank" else ""
        path = path_of(node)
        ranks = {self.rank_of(v, depth - 1) for v in self.assigned.get(path, ()) if depth and constant(v) is None}
        named = "?" if RANK.fullmatch(path.rpartition(".")[2]) else ""
        return ranks.pop() if len(ranks) == 1 else "" if ranks else named

    def side(self, test: Any) -> int:
        """1 if a test lets one rank through, -1 if the others, 0 if it cannot be told."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return 1 if self.rank_of(test.operand) else -self.side(test.operand)
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            [operation], [right] = test.ops, test.comparators
            zero = constant(right) == 0 or any(constant(e) == 0 for e in getattr(right, "elts", ()))
            sides = {ast.Eq: 1, ast.In: 1, ast.NotEq: -1, ast.NotIn: -1, ast.Gt: -1}
            return sides.get(type(operation), 0) if zero and self.rank_of(test.left) else 0
        if ONE_RANK.fullmatch(path_of(getattr(test, "func", test)).rpartition(".")[2].strip("_")):
            return 1
        values = self.assigned.get(path_of(test), [])
        return self.side(values[0]) if len(values) == 1 and not path_of(values[0]) else 0

    def ranks_at(self, node: Any) -> int:
        """1 if one rank alone comes to a node, -1 if all others do, 0 if all do or it cannot be told."""
        for test, answer in self.guards(node):
            certain = isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And if answer else ast.Or)
            for side in filter(None, map(self.side, test.values if certain else [test])):
                return side if answer else -side
        return 0

    def rankish(self, node: Any) -> bool:
        """Whether an expression has anything to do with ranks."""
        parts = [node, *(o for n in names_in(node) for o in self.assigned.get(path_of(n), ()))]
        return any(RANKISH.search(word) for part in parts for word in words(part))

    def on_some_ranks(self, node: Any) -> bool:
        """Whether anything about ranks stands before a node, also where its function is called."""
        if any(self.rankish(test) for test, _ in self.guards(node)):
            return True
        if not isinstance(node.scope, ast.FunctionDef):
            return False
        marks = [node.scope.name, *(word for mark in node.scope.decorator_list for word in words(mark))]
        sites = self.call_sites(node.scope)
        return any(map(RANKISH.search, marks)) or (bool(sites) and all(map(self.on_some_ranks, sites)))

    # edits

    def start(self, node: Any) -> int:
        """The byte at which a node starts."""
        return self.starts_of_lines[node.lineno - 1] + node.col_offset

    def end(self, node: Any) -> int:
        """The byte after a node."""
        return self.starts_of_lines[node.end_lineno - 1] + node.end_col_offset

    def source(self, node: Any) -> str:
        """A node as it is written."""
        return self.data[self.start(node) : self.end(node)].decode()


def path_of(node: Any) -> str:
    """``model`` or ``self.model`` as it is written; empty for any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    inner = path_of(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{inner}.{node.attr}" if inner else ""


WORDS: dict[type, str] = {
    ast.Name: "id",
    ast.Attribute: "attr",
    ast.arg: "arg",
    ast.keyword: "arg",
    ast.alias: "name",
    ast.Constant: "value",
    ast.FunctionDef: "name",
    ast.ClassDef: "name",
}
"""Where a node has the name or string that it is."""


def own_word(node: Any) -> str:
    """The name, attribute, keyword or string that a node is; empty if it is none."""
    word = getattr(node, WORDS.get(type(node), ""), None)
    return word if isinstance(word, str) else ""


def words(node: Any) -> Iterator[str]:
    """Every name, attribute, keyword and string in a part of the tree."""
    nodes = ast.walk(node) if isinstance(node, ast.AST) else ()
    return filter(None, map(own_word, nodes))


def names_in(node: Any) -> list[Any]:
    """The variables in an expression."""
    return [n for n in ast.walk(node) if isinstance(n, (ast.Name, ast.Attribute))]


def calls_in(node: Any, *methods: str) -> list[Any]:
    """The calls in a part of the tree, or those of some methods."""
    calls = [n for n in ast.walk(node) if isinstance(n, ast.Call)]
    return [c for c in calls if not methods or getattr(c.func, "attr", "") in methods]


def ancestors(node: Any) -> Iterator[Any]:
    """All nodes around a node, the nearest first."""
    while node.parent:
        node = node.parent
        yield node


def place(node: Any) -> tuple[int, int]:
    """Where a node starts."""
    return node.lineno, node.col_offset


def argument(call: Any, name: str, position: int = 999) -> Any:
    """An argument's expression, by its name or position; None if it is not given."""
    named = [k.value for k in call.keywords if k.arg == name]
    return [*named, *call.args[position : position + 1], None][0]


def constant(node: Any) -> Any:
    """A literal's value, otherwise None."""
    return node.value if isinstance(node, ast.Constant) else None


def unpacks(call: Any) -> bool:
    """Whether arguments come from ``*`` or ``**``, unseen."""
    return any(k.arg is None for k in call.keywords) or any(isinstance(a, ast.Starred) for a in call.args)


# --- sharding --------------------------------------------------------------------------------------------------

FSDP1_ARGUMENTS = {
    "sharding_strategy": "reshard_after_forward: True for FULL_SHARD, False for SHARD_GRAD_OP; a 2-D mesh for HYBRID",
    "auto_wrap_policy": "fully_shard on each block, then on the root",
    "mixed_precision": "mp_policy=MixedPrecisionPolicy(param_dtype=, reduce_dtype=)",
    "cpu_offload": "offload_policy=CPUOffloadPolicy()",
    "backward_prefetch": "nothing, or set_modules_to_backward_prefetch",
    "forward_prefetch": "nothing, or set_modules_to_forward_prefetch",
    "ignored_modules": "ignored_params, from 2.7 on",
    "ignored_states": "ignored_params, from 2.7 on",
    "param_init_fn": "a model on meta, fully_shard, to_empty, then the initialisation",
    "device_id": "nothing: the mesh has the device's type",
    "sync_module_states": "set_model_state_dict with StateDictOptions(broadcast_from_rank0=True)",
    "limit_all_gathers": "nothing: there is no rate limiter",
    "use_orig_params": "nothing: the parameters are always the model's own",
    "process_group": "mesh",
    "device_mesh": "mesh",
}
"""What FSDP2 has for each argument of FullyShardedDataParallel."""
FSDP1_METHODS = {
    "no_sync": "set_requires_gradient_sync(False) before all but the last micro-batch",
    "clip_grad_norm_": "torch.nn.utils.clip_grad_norm_(model.parameters(), ...)",
    "summon_full_params": "unshard() and reshard(), or full_tensor() of a parameter",
    "state_dict_type": "get_model_state_dict(model, options=StateDictOptions(...))",
    "set_state_dict_type": "get_model_state_dict(model, options=StateDictOptions(...))",
    "optim_state_dict": "get_optimizer_state_dict",
    "optim_state_dict_to_load": "set_optimizer_state_dict",
    "fsdp_modules": "isinstance(m, FSDPModule) over modules()",
    "register_comm_hook": "set_all_reduce_hook, from 2.7 on",
}
"""What FSDP2 has for each method of FullyShardedDataParallel."""


@rule(1, ERROR)
def optimizer_before_sharding(m: Module) -> Iterator[Hit]:
    """The optimizer is made before the model is sharded and keeps parameters that the model no longer has.

    Make it after the last call of fully_shard or FSDP.
    """
    made = [call for call in m.nodes[ast.Call] if m.name(call.func).startswith("optim.")]
    for wrap in (w for w in m.wraps if w.kind != DDP):
        for call in (c for c in made if m.before(c, wrap.call)):
            inputs = [call, *(origin for given in call.args for origin in m.origins(given))]
            owners = [path_of(c.func.value) for i in inputs for c in calls_in(i, "parameters", "named_parameters")]
            if set(owners).intersection(wrap.names):
                yield Hit(call, wrap.names[0])


@rule(2, WARNING)
def root_only_sharding(m: Module) -> Iterator[Hit]:
    """Only the root is sharded: all parameters are one group, gathered at once, and nothing overlaps.

    Call fully_shard on each block before the root; with FSDP1, pass auto_wrap_policy.
    """
    for call in next((m.calls[kind] for kind in (FSDP1, FSDP2) if len(m.calls[kind]) == 1), []):
        model = path_of(argument(call, "module", 0))
        repeated = m.loop_of(call) or any(isinstance(n, (ast.Lambda, ast.comprehension)) for n in ancestors(call))
        seen = not repeated and not unpacks(call) and not m.has("wrap", "enable_wrap", "auto_wrap_policy")
        if seen and any(has_blocks(m, c) for origin in m.assigned.get(model, ()) for c in calls_in(origin)):
            yield Hit(call, model)


def has_blocks(m: Module, made: Any) -> bool:
    """Whether a call makes a model of repeated blocks."""
    path = path_of(made.func)
    classes = [c for c in m.nodes[ast.ClassDef] if c.name == path and "ModuleList" in words(c)]
    repeats = m.raw(made.func) == "torch.nn.Sequential" and unpacks(made)
    return bool(classes) or path.startswith("AutoModel") or repeats


@rule(3, ERROR)
def root_before_blocks(m: Module) -> Iterator[Hit]:
    """The root is sharded before its blocks: it takes all their parameters into its own group.

    Shard bottom-up: the blocks first, the root last.
    """
    for root in (w for w in m.wraps if w.kind == FSDP2 and w.names):
        for block in (w for w in m.wraps if w.kind == FSDP2 and m.before(root.call, w.call)):
            loop = m.loop_of(block.call)
            over = names_in(loop.iter) if isinstance(loop, ast.For) and path_of(loop.target) in block.names else []
            if any(path_of(n).startswith(root.names[0] + ".") and m.before(root.call, n) for n in over):
                yield Hit(root.call, root.names[0])


@rule(4, ERROR)
def forward_called(m: Module) -> Iterator[Hit]:
    """forward() is called past the hooks of fully_shard, which gather the parameters.

    Call the module itself.
    """
    for call in m.on(FSDP2, "forward"):
        yield Hit(call, path_of(call.func), edits=(Edit(m.end(call.func.value), m.end(call.func), ""),))


@rule(5, ERROR)
def fsdp1_argument(m: Module) -> Iterator[Hit]:
    """fully_shard knows no argument or policy of FSDP1.

    Use what FSDP2 has for it.
    """
    policies = {"fsdp.MixedPrecision": "mixed_precision", "fsdp.CPUOffload": "cpu_offload"}
    for given in (k for call in m.calls[FSDP2] for k in call.keywords):
        makers = [m.name(o.func) for o in m.origins(given.value) if isinstance(o, ast.Call)]
        old = given.arg if given.arg in FSDP1_ARGUMENTS else policies.get("".join(makers))
        if old:
            yield Hit(given.value, given.arg, f"Use {FSDP1_ARGUMENTS[old]}.")


@rule(6, ERROR)
def fsdp1_method(m: Module) -> Iterator[Hit]:
    """A model that fully_shard sharded has no method of FSDP1 and no wrapper around it.

    Use the model itself.
    """
    for method in FSDP1_METHODS.keys() - {"no_sync", "clip_grad_norm_"}:
        static = [c for c in m.calls[f"fsdp.{method}"] if c.args and m.is_model(c.args[0], FSDP2)]
        yield from (Hit(c, method, f"Use {FSDP1_METHODS[method]}.") for c in [*static, *m.on(FSDP2, method)])
    yield from (Hit(n, "module") for n in m.nodes[ast.Attribute] if n.attr == "module" and m.is_model(n.value, FSDP2))


# --- gradients -------------------------------------------------------------------------------------------------


@rule(10, ERROR)
def no_sync_under_fsdp2(m: Module) -> Iterable[Hit]:
    """fully_shard has no no_sync().

    Call set_requires_gradient_sync(False) before all but the last micro-batch, and True before the last.
    """
    return map(Hit, m.on(FSDP2, "no_sync"))


@rule(11, WARNING)
def accumulation_reduces_every_time(m: Module) -> Iterator[Hit]:
    """Gradients are accumulated, yet every micro-batch reduces them over the network.

    Use no_sync() (FSDP1, DDP) or set_requires_gradient_sync(False) (FSDP2) but for the last, if memory allows.
    """
    if not m.wraps or m.has("no_sync", "set_requires_gradient_sync", "set_is_last_backward", "accumulate"):
        return
    steps = [c for c in m.methods["step"] if re.search("opt|scaler", path_of(c.func), re.I)]
    for call in (c for c in m.methods["backward"] if m.loop_of(c) and not c.args):
        loop = m.loop_of(call)
        inside = [step for step in steps if loop in ancestors(step)]
        rare = [s for s in inside if any(isinstance(n, ast.Mod) for test, _ in m.guards(s) for n in ast.walk(test))]
        after = [s for s in steps if m.loop_of(loop) and m.loop_of(s) is m.loop_of(loop) and m.before(call, s)]
        if inside == rare and (rare or after):
            yield Hit(call)


@rule(12, ERROR)
def wrong_clip_grad_norm(m: Module) -> Iterator[Hit]:
    """The wrong function clips: FSDP1 needs the root's method, which sees the whole norm; FSDP2 has no such method.

    FSDP1: model.clip_grad_norm_(max_norm). FSDP2: torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm).
    """
    functions, methods = m.calls["utils.clip_grad_norm_"], m.on(FSDP1, "clip_grad_norm_")
    for call in m.on(FSDP2, "clip_grad_norm_") if not functions else ():
        new = f"torch.nn.utils.clip_grad_norm_({m.source(call.func.value)}.parameters(), "
        yield Hit(call, edits=beginning(m, call, new, 0) if (m.tree, "torch") in m.bindings else ())
    for call in functions if not methods and not m.has("NO_SHARD") else ():
        model = getattr(getattr(call.args[0], "func", None), "value", None) if call.args else None
        if m.is_model(model, FSDP1) and call.args[0].func.attr == "parameters":
            plain = {k.arg for k in call.keywords} <= {"norm_type"}
            yield Hit(call, edits=beginning(m, call, f"{m.source(model)}.clip_grad_norm_(", 1) if plain else ())


def beginning(m: Module, call: Any, new: str, skip: int) -> tuple[Edit, ...]:
    """``new`` in place of a call up to the argument after ``skip`` others; nothing if there is no such argument."""
    return tuple(Edit(m.start(call), m.start(following), new) for following in call.args[skip : skip + 1])


@rule(13, ERROR)
def clip_before_unscale(m: Module) -> Iterator[Hit]:
    """Gradients are clipped while they still carry the GradScaler's factor.

    Call scaler.unscale_(optimizer) before clipping.
    """
    scaling = {c.scope for c in m.methods["scale"] if getattr(c.parent, "attr", "") == "backward"}
    for call in m.methods["clip_grad_norm_"] + m.methods["clip_grad_value_"] if not m.has("unscale_") else ():
        if call.scope in scaling:
            yield Hit(call)


@rule(14, ERROR)
def plain_scaler_under_fsdp1(m: Module) -> Iterator[Hit]:
    """Under FSDP1 each rank's GradScaler sees overflows of its own shards only, so ranks skip different steps.

    Use torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler.
    """
    if {w.kind for w in m.wraps} == {FSDP1} and not m.has("ShardedGradScaler", "NO_SHARD"):
        yield from map(Hit, m.calls["amp.GradScaler"])


def policy_types(m: Module) -> set[str]:
    """The types of compute that the file's mixed precision policies name."""
    given = [argument(p, "param_dtype", 0) for p in m.found("fsdp.MixedPrecision", "fsdp.MixedPrecisionPolicy")]
    return {m.raw(dtype) for dtype in given if dtype is not None}


@rule(15, WARNING)
def scaler_with_bf16(m: Module) -> Iterator[Hit]:
    """A GradScaler does nothing good for bfloat16, whose range is that of float32.

    Remove it, or pass enabled=False unless the type is float16.
    """
    if policy_types(m) == {"torch.bfloat16"} and not m.has("float16", "half", "fp16"):
        for call in m.found("amp.GradScaler", "fsdp.ShardedGradScaler"):
            if argument(call, "enabled") is None:
                yield Hit(call)


@rule(16, WARNING)
def autocast_against_policy(m: Module) -> Iterator[Hit]:
    """autocast computes in another type than the one that the sharding policy gathers parameters in.

    Leave the type to the policy alone, or give autocast the same.
    """
    types = policy_types(m)
    for call in m.calls["amp.autocast"] if len(types) == 1 else ():
        given, device = argument(call, "dtype", 1), constant(argument(call, "device_type", 0))
        used = m.raw(given) if given is not None else "torch.float16" if device == "cuda" else ""
        if used.startswith("torch.") and types != {used, ""} - {""} and argument(call, "enabled") is None:
            yield Hit(call, used)


# --- processes and devices -------------------------------------------------------------------------------------


@rule(20, WARNING)
def device_not_set(m: Module) -> Iterator[Hit]:
    """NCCL starts while every rank has GPU 0 as its current device.

    Call torch.cuda.set_device(local_rank) before init_process_group.
    """
    bare = any([constant(a) for a in c.args] in ([], ["cuda"]) for c in m.methods["cuda"] + m.methods["to"])
    chosen = m.has("set_device", "set_device_index", "device_id", "CUDA_VISIBLE_DEVICES", "local_rank")
    for start in m.starts if m.is_script and bare and not chosen else ():
        if any("nccl" in word for word in words(argument(start, "backend", 0))):
            yield Hit(start)


@rule(21, ERROR)
def rank_confused(m: Module) -> Iterator[Hit]:
    """RANK counts over all nodes, LOCAL_RANK on one: they differ on every node but the first.

    Choose the device by LOCAL_RANK; give samplers and process groups RANK.
    """
    devices = [a for c in m.calls["torch.cuda.set_device"] + m.methods["to"] + m.methods["cuda"] for a in c.args[:1]]
    devices += [c.args[1] for c in m.calls["torch.device"] if len(c.args) > 1]
    devices += [given for w in m.wraps for given in [argument(w.call, "device_id")] if given is not None]
    devices += [e for w in m.wraps for e in getattr(argument(w.call, "device_ids"), "elts", ())]
    texts = [text.values for text in m.nodes[ast.JoinedStr] if len(text.values) == 2]
    devices += [values[1].value for values in texts if constant(values[0]) == "cuda:"]
    yield from (Hit(d if hasattr(d, "lineno") else d.parent, "RANK") for d in devices if m.rank_of(d) == "RANK")
    for call in m.found("data.DistributedSampler", "dist.init_process_group"):
        if m.rank_of(argument(call, "rank")) == "LOCAL_RANK":
            yield Hit(argument(call, "rank"), "LOCAL_RANK")


@rule(22, WARNING)
def group_not_destroyed(m: Module) -> Iterable[Hit]:
    """The process group is never destroyed: NCCL warns, and ranks that end early can make the others fail.

    Call torch.distributed.destroy_process_group() on every way out.
    """
    ends = m.has("destroy_process_group", "Accelerator", "end_training")
    return map(Hit, m.starts if m.is_script and not ends else ())


@rule(24, ERROR)
def local_rank_argument(m: Module) -> Iterator[Hit]:
    """torchrun passes no --local_rank: every rank gets the default and takes the same GPU.

    Read LOCAL_RANK from the environment.
    """
    for call in m.methods["add_argument"] if m.starts and not m.has("LOCAL_RANK", "deepspeed") else ():
        if {"--local_rank", "--local-rank"}.intersection(map(constant, call.args)):
            yield Hit(call)


@rule(25, ERROR)
def offload_without_cpu_backend(m: Module) -> Iterator[Hit]:
    """With CPUOffloadPolicy gradients are on the CPU, where NCCL cannot reduce their norm for clipping.

    Call init_process_group("cpu:gloo,cuda:nccl").
    """
    for start in m.starts if m.calls["fsdp.CPUOffloadPolicy"] and m.calls["utils.clip_grad_norm_"] else ():
        if constant(argument(start, "backend", 0)) == "nccl":
            yield Hit(start)


# --- collectives -----------------------------------------------------------------------------------------------

_NAMES = """all_reduce all_gather all_gather_into_tensor all_gather_single all_gather_object reduce reduce_scatter
reduce_scatter_tensor reduce_scatter_single broadcast broadcast_object_list gather gather_object scatter
scatter_object_list all_to_all all_to_all_single barrier monitored_barrier new_group init_device_mesh"""
COLLECTIVES = [f"dist.{name}" for name in _NAMES.split()]
STATE_GETTERS = [f"dcp.get_{what}state_dict" for what in ("", "model_", "optimizer_")]


def collectives(m: Module) -> Iterator[tuple[str, Any]]:
    """Calls that every rank must make, and what each does; not those within a group of some ranks."""
    for name in [*COLLECTIVES, *STATE_GETTERS, "dcp.save", "dcp.load", "dcp.async_save", "fsdp.optim_state_dict"]:
        for call in m.calls.get(name, ()):
            grouped = {"group", "process_group", "no_dist", "ranks", None} & {k.arg for k in call.keywords}
            if not grouped and len(call.args) < (1 if name in ("dist.barrier", "dist.new_group") else 3):
                yield name, call
    yield from (("state_dict", call) for call in m.on(FSDP1, "state_dict"))
    yield from (("full_tensor", call) for call in m.methods["full_tensor"])


@rule(30, ERROR)
def collective_on_one_rank(m: Module) -> Iterator[Hit]:
    """Some ranks only make this collective call, and wait in it forever for the others.

    Let all ranks call it; let only what follows depend on the rank.
    """
    seen = list(collectives(m))
    hidden = {c.scope: name for name, c in seen if not any(m.guards(c))}
    for function in (f for f in m.nodes[ast.FunctionDef] if f in hidden):
        seen += [(hidden[function], site) for site in m.call_sites(function)]
    for name, call in seen:
        others = [other for what, other in seen if what == name and other.scope is call.scope]
        ways = {(test, not answer) for test, answer in m.guards(call)}
        met = any(m.ranks_at(o) == -m.ranks_at(call) or not ways.isdisjoint(m.guards(o)) for o in others)
        if m.ranks_at(call) and not met:
            yield Hit(call, name.rpartition(".")[2])


@rule(31, ERROR)
def handle_dropped(m: Module) -> Iterator[Hit]:
    """The handle of an asynchronous call is dropped: nothing waits until the tensor or the file is whole.

    Keep it, and call wait(), or result() for async_save, before using the outcome.
    """
    names = () if m.has("barrier", "synchronize") else (*COLLECTIVES, "dist.isend", "dist.irecv")
    for call in m.found(*names, "dcp.async_save"):
        name = m.name(call.func)
        if isinstance(call.parent, ast.Expr) and (name not in COLLECTIVES or constant(argument(call, "async_op"))):
            yield Hit(call, name.rpartition(".")[2])


@rule(32, ERROR)
def gather_into_one_tensor(m: Module) -> Iterator[Hit]:
    """`[tensor] * n` is n times the same tensor: each rank's values overwrite the ones before.

    Use [torch.empty_like(x) for _ in range(world_size)].
    """
    for call in m.found("dist.all_gather", "dist.gather"):
        for made in (o for given in call.args[:2] for o in m.origins(given)):
            if isinstance(made, ast.BinOp) and any(isinstance(e, ast.Call) for e in getattr(made.left, "elts", ())):
                yield Hit(made)


# --- data ------------------------------------------------------------------------------------------------------


@rule(40, WARNING)
def epoch_not_set(m: Module) -> Iterator[Hit]:
    """Without set_epoch() the DistributedSampler shuffles every epoch alike.

    Call sampler.set_epoch(epoch) at the start of each epoch.
    """
    epochs = any(m.loop_of(loop) for loop in m.training_loops) or m.has("epochs", "num_epochs")
    for call in m.calls["data.DistributedSampler"] if epochs and m.is_script and not m.has("set_epoch") else ():
        shuffle = constant(argument(call, "shuffle", 3))
        if shuffle is not False and not unpacks(call) and not any(map(EVALUATION.search, words(call.parent))):
            yield Hit(call)


@rule(41, ERROR)
def no_distributed_sampler(m: Module) -> Iterator[Hit]:
    """The DataLoader has no distributed sampler: every rank trains on the same samples.

    Pass sampler=DistributedSampler(dataset).
    """
    other_ways = ("DistributedSampler", "split_dataset_by_node", "IterableDataset", "Accelerator", "shard", "Subset")
    for call in m.calls["data.DataLoader"] if m.trains and not m.has(*other_ways) else ():
        sampled = {"sampler", "batch_sampler", None}.intersection(k.arg for k in call.keywords)
        data = argument(call, "dataset", 0)
        if not sampled and not m.rankish(data) and not any(map(EVALUATION.search, words(call.parent))):
            yield Hit(call)


@rule(43, ERROR)
def same_seed_on_every_rank(m: Module) -> Iterator[Hit]:
    """Every rank has the same seed and draws its batches from it: all ranks train on the same data.

    After the model is made, seed with seed + rank.
    """
    seeds = m.found("torch.manual_seed", "torch.cuda.manual_seed", "torch.cuda.manual_seed_all")
    for call in m.found("torch.randn", "torch.rand", "torch.randint") if m.trains and seeds else ():
        drawn = m.loop_of(call) in m.training_loops and argument(call, "generator") is None
        if drawn and not any(map(m.rankish, seeds)):
            yield Hit(call)


@rule(44, WARNING)
def uneven_batches(m: Module) -> Iterator[Hit]:
    """Ranks that take every n-th sample can have one batch more than others, and wait in it forever.

    Cut all to the shortest, use DistributedSampler, or train inside torch.distributed.algorithms.join.Join.
    """
    if m.methods["backward"] and not m.has("Join", "join", "drop_last", "total_size", "MIN", "Sampler"):
        for part in (s for s in m.nodes[ast.Slice] if s.lower is not None and m.rank_of(s.lower)):
            if any(re.search("world_size|num_ranks|num_replicas", word, re.I) for word in words(part.step)):
                yield Hit(part.parent)


# --- checkpoints -----------------------------------------------------------------------------------------------


@rule(50, ERROR)
def save_of_shards(m: Module) -> Iterator[Hit]:
    """torch.save writes this rank's shards only, which no other number of ranks can load.

    Use torch.distributed.checkpoint.save on all ranks, or gather the full state dict first.
    """
    for call in m.calls["torch.save"] if not m.has("full_tensor") else ():
        saved = [call.args[0], *(o for n in names_in(call.args[0]) for o in m.origins(n))] if call.args else []
        for owner in (c.func.value for part in saved for c in calls_in(part, "state_dict")):
            makers = [c for made in m.assigned.get(path_of(owner), ()) for c in calls_in(made, "parameters")]
            sharded = m.is_model(owner, FSDP2) or any(
                m.is_model(c.func.value, kind) for c in makers for kind in (FSDP1, FSDP2)
            )
            if sharded and not m.rankish(argument(call, "f", 1)):
                yield Hit(call, path_of(owner))


@rule(51, WARNING)
def full_state_on_every_rank(m: Module) -> Iterator[Hit]:
    """The whole model is gathered onto every rank's GPU.

    FSDP2: add cpu_offload=True, so that rank 0's host alone keeps it. FSDP1: FullStateDictConfig(True, True).
    """
    for options in (o for call in m.found(*STATE_GETTERS) for o in m.origins(argument(call, "options"))):
        full = isinstance(options, ast.Call) and constant(argument(options, "full_state_dict", 0)) is True
        if full and not {"cpu_offload", "broadcast_from_rank0", None} & {k.arg for k in options.keywords}:
            yield Hit(options)
    for call in m.calls["fsdp.state_dict_type"]:
        saves = calls_in(call.parent.parent, "state_dict") if isinstance(call.parent, ast.withitem) else []
        if saves and len(call.args) == 2 and not call.keywords and "FULL_STATE_DICT" in words(call.args[1]):
            yield Hit(call)


@rule(52, ERROR)
def one_file_many_writers(m: Module) -> Iterator[Hit]:
    """All ranks write the same file at the same time and destroy it.

    Write on rank 0 only, or use torch.distributed.checkpoint.save.
    """
    for call in m.calls["torch.save"] if m.is_script and not m.has("BytesIO") else ():
        reached = not isinstance(call.scope, ast.FunctionDef) or m.call_sites(call.scope)
        if reached and not m.rankish(argument(call, "f", 1)) and not m.on_some_ranks(call):
            yield Hit(call)


@rule(53, WARNING)
def load_without_map_location(m: Module) -> Iterator[Hit]:
    """torch.load puts tensors back on the GPU they were saved from: all ranks fill that one.

    Pass map_location="cpu".
    """
    for call in m.calls["torch.load"] if m.is_script else ():
        if argument(call, "map_location", 1) is None and not unpacks(call):
            yield Hit(call)


@rule(54, ERROR)
def dcp_load_returns_nothing(m: Module) -> Iterator[Hit]:
    """torch.distributed.checkpoint.load fills the state dict that it is given and returns None.

    Make the state dict first, pass it, and use it afterwards.
    """
    for call in m.calls["dcp.load"]:
        if isinstance(call.parent, (ast.Assign, ast.AnnAssign, ast.Call, ast.keyword, ast.Attribute, ast.Subscript)):
            yield Hit(call)


@rule(55, ERROR)
def whole_checkpoint_into_shards(m: Module) -> Iterator[Hit]:
    """load_state_dict cannot put whole tensors into sharded parameters.

    Use set_model_state_dict with StateDictOptions(full_state_dict=True, broadcast_from_rank0=True).
    """
    for call in m.on(FSDP2, "load_state_dict") if not m.has("distribute_tensor") else ():
        sharded = any(path_of(call.func.value) in w.names and m.before(w.call, call) for w in m.wraps)
        makers = [m.raw(getattr(o, "func", None)) for given in call.args[:1] for o in m.origins(given)]
        if sharded and makers and set(makers) <= {"torch.load", "safetensors.torch.load_file"}:
            yield Hit(call)


# --- the meta device -------------------------------------------------------------------------------------------


@rule(60, ERROR)
def nothing_initialised(m: Module) -> Iterable[Hit]:
    """to_empty gives parameters and buffers memory with anything in it, and nothing fills it.

    Initialise every parameter and buffer afterwards, or load a checkpoint.
    """
    fills = re.compile(
        "init(?!_process_group|_device_mesh|__)|reset_param|load(?!er)|set_.*state_dict|copy_|normal_|fill_"
    )
    return map(Hit, m.methods["to_empty"] if not any(map(fills.search, m.words)) else ())


@rule(61, ERROR)
def buffer_lost(m: Module) -> Iterator[Hit]:
    """A buffer that only the constructor computes is lost on the meta device; to_empty leaves memory in its place.

    Compute it again in the initialisation that runs after to_empty.
    """
    for call in m.methods["register_buffer"] if m.methods["to_empty"] else ():
        name, value = constant(argument(call, "name", 0)), argument(call, "tensor", 1)
        uses = [n for n in m.nodes[ast.Attribute] if n.attr == name and n.scope is not call.scope]
        made_again = any(isinstance(n.ctx, ast.Store) or getattr(n.parent, "attr", " ")[-1] == "_" for n in uses)
        if getattr(call.scope, "name", "") == "__init__" and not isinstance(value, ast.Constant) and not made_again:
            yield Hit(call, str(name))


# --- the loop --------------------------------------------------------------------------------------------------


def every_step(m: Module, calls: Iterable[Any]) -> Iterator[Any]:
    """Those calls that every rank makes in every step of a training loop."""
    for call in calls if m.trains else ():
        loop = m.loop_of(call)
        always = loop in m.training_loops and not any(place(test) > place(loop) for test, _ in m.guards(call))
        if always and not m.on_some_ranks(call):
            yield call


@rule(70, WARNING)
def print_on_every_rank(m: Module) -> Iterable[Hit]:
    """Every rank prints in every step; a tensor in it makes the CPU wait for the GPU.

    Print on rank 0, every so many steps.
    """
    return map(Hit, every_step(m, m.calls["print"]))


@rule(71, WARNING)
def item_every_step(m: Module) -> Iterable[Hit]:
    """item() in every step makes the CPU wait for the GPU, so that nothing is queued ahead.

    Add up tensors, and read them every so many steps.
    """
    printed = {call for shown in m.calls["print"] for call in calls_in(shown)}
    return (Hit(call) for call in every_step(m, m.methods["item"]) if call not in printed)


@rule(73, WARNING, default=False)
def find_unused_parameters(m: Module) -> Iterator[Hit]:
    """find_unused_parameters=True walks the graph in every step; only parameters that get no gradient need it.

    Remove it, or say in a comment beside it which ones those are.
    """
    for call in m.calls[DDP] if not m.has("TestCase") else ():
        given = argument(call, "find_unused_parameters")
        if constant(given) is True and "#" not in "".join(m.lines[given.lineno - 2 : given.lineno]):
            yield Hit(given)


# --- versions --------------------------------------------------------------------------------------------------

HISTORY = """
torch.cuda.amp.GradScaler deprecated 2.4 torch.amp.GradScaler("cuda")
torch.cuda.amp.autocast deprecated 2.4 torch.amp.autocast("cuda")
torch.cuda.amp.custom_fwd deprecated 2.4 torch.amp.custom_fwd(device_type="cuda")
torch.cuda.amp.custom_bwd deprecated 2.4 torch.amp.custom_bwd(device_type="cuda")
torch.nn.utils.clip_grad_norm deprecated 2.4 clip_grad_norm_
torch.accelerator added 2.6
torch.accelerator.memory_allocated added 2.9
torch.cuda.MemPoolContext removed 2.8 torch.cuda.use_mem_pool
torch.nn.utils.get_total_norm added 2.6
.all_reduce_coalesced deprecated 2.4 all_reduce
.all_gather_coalesced deprecated 2.4 all_gather
.all_gather_into_tensor deprecated 2.13 all_gather_single
.reduce_scatter_tensor deprecated 2.13 reduce_scatter_single
.all_gather_single added 2.13
.reduce_scatter_single added 2.13
.gather_single added 2.14
.set_timeout added 2.14
.shrink_group added 2.10
.barrier(timeout) added 2.12
.new_group(device_id) added 2.6
.broadcast(group_src) added 2.6
.nn.all_reduce deprecated 2.12 torch.distributed._functional_collectives.all_reduce
.nn.all_gather deprecated 2.12 torch.distributed._functional_collectives.all_gather_single
.nn.reduce_scatter deprecated 2.12 torch.distributed._functional_collectives.reduce_scatter_single
.init_device_mesh(backend_override) added 2.9
.device_mesh.init_device_mesh(backend_override) added 2.9
.tensor.distribute_tensor(src_data_rank) added 2.7
.tensor.experimental.context_parallel added 2.6
.tensor.parallel.PrepareModuleInputOutput added 2.8
._composable.fully_shard removed 2.6 torch.distributed.fsdp.fully_shard
._tensor.debug removed 2.5 torch.distributed.tensor.debug
._tensor.random removed 2.5 torch.distributed.tensor
.checkpoint.save_state_dict deprecated 2.4 torch.distributed.checkpoint.save
.checkpoint.load_state_dict deprecated 2.4 torch.distributed.checkpoint.load
.checkpoint.HuggingFaceStorageReader added 2.8
.checkpoint.HuggingFaceStorageWriter added 2.8
.checkpoint.staging.DefaultStager added 2.9
.checkpoint.save(no_dist) added 2.7
.checkpoint.load(no_dist) added 2.7
.checkpoint.async_save(async_checkpointer_type) added 2.7
.checkpoint.async_save(async_stager) added 2.9
.fsdp.fully_shard added 2.6
.fsdp.fully_shard(ignored_params) added 2.7
.fsdp.fully_shard(dp_mesh_dims) added 2.12
.fsdp.DataParallelMeshDims added 2.12
.fsdp.FSDPModule added 2.6
.fsdp.MixedPrecisionPolicy added 2.6
.fsdp.CPUOffloadPolicy added 2.6
.fsdp.register_fsdp_forward_method added 2.6
.fsdp.share_comm_ctx added 2.10
.fsdp.FSDPModule.set_all_reduce_hook added 2.7
.fsdp.FSDPModule.set_gradient_divide_factor added 2.8
.fsdp.FSDPModule.set_reduce_scatter_divide_factor deprecated 2.8 set_gradient_divide_factor
.fsdp.FSDPModule.set_reshard_after_forward added 2.8
.fsdp.FSDPModule.set_force_sum_reduction_for_comms added 2.8
.fsdp.FSDPModule.set_allocate_memory_from_process_group_for_comm added 2.8
.fsdp.FSDPModule.set_custom_all_gather added 2.9
.fsdp.FSDPModule.set_custom_reduce_scatter added 2.9
.fsdp.FSDPModule.set_symm_mem_for_comm added 2.12
.fsdp.FullyShardedDataParallel.set_state_dict_type deprecated 2.4 get_state_dict
.fsdp.FullyShardedDataParallel.full_optim_state_dict deprecated 2.4 optim_state_dict
.fsdp.FullyShardedDataParallel.sharded_optim_state_dict deprecated 2.4 optim_state_dict
.fsdp.FullyShardedDataParallel.shard_full_optim_state_dict deprecated 2.4 optim_state_dict_to_load
.fsdp.FullyShardedDataParallel.scatter_full_optim_state_dict deprecated 2.4 optim_state_dict_to_load
torch.nn.parallel.DistributedDataParallel(broadcast_buffers) deprecated 2.13 forward_sync_buffers
"""
"""Name or name(parameter), what happened, in which release (2.4: or before), successor; ``.`` is torch.distributed."""
MOVED = {
    "._composable.fsdp": (".fsdp", "CPUOffloadPolicy FSDPModule MixedPrecisionPolicy OffloadPolicy fully_shard"),
    "._tensor": (".tensor", "DTensor Partial Placement Replicate Shard distribute_module distribute_tensor"),
    "._tensor.placement_types": (".tensor", "Partial Placement Replicate Shard"),
    "._tensor.device_mesh": (".device_mesh", "DeviceMesh init_device_mesh"),
}
"""Names in private modules that are public elsewhere since OLDEST; ``.`` is torch.distributed."""
OLD_VARIABLES = ["NCCL_ASYNC_ERROR_HANDLING", "NCCL_BLOCKING_WAIT", "NCCL_DESYNC_DEBUG", "NCCL_ENABLE_TIMING"]


def release(text: str) -> tuple[int, int]:
    """``2.6.0+cu126`` -> (2, 6); raises ValueError for what is no version."""
    major, minor, *_ = re.split(r"[.+]", text)
    return int(major), int(minor)


def changes(m: Module, change: str) -> Iterator[tuple[Any, str, tuple[int, int], str]]:
    """Uses of names that a change befell, but those that a ``try`` or a test of the version protects."""
    facts = {}
    for line in HISTORY.strip().split("\n"):
        name, what, since, successor = [*line.split(" "), ""][:4]
        if what == change:
            facts["torch.distributed" * name.startswith(".") + name] = release(since), successor
    for name, node in used_names(m) if change != "added" or m.torch else ():
        if name in facts and not m.is_guarded(node) and not any(isinstance(n, ast.Try) for n in ancestors(node)):
            yield (node, name, *facts[name])


def used_names(m: Module) -> Iterator[tuple[str, Any]]:
    """Full names that a file imports, spells out, or calls with a parameter: ``name(parameter)``."""
    for node in m.nodes[ast.ImportFrom]:
        yield from ((f"{node.module}.{alias.name}", alias) for alias in node.names if not node.level)
    for node in m.nodes[ast.Import]:
        yield from ((alias.name, alias) for alias in node.names)
    for node in m.nodes[ast.Attribute]:
        if node.attr in HISTORY:
            made_here = node.attr.startswith("set_") and not m.raw(node)
            yield (f"torch.distributed.fsdp.FSDPModule.{node.attr}" if made_here else m.raw(node)), node
    for call in m.nodes[ast.Call]:
        yield from ((f"{m.raw(call.func)}({k.arg})", k.value) for k in call.keywords if f"({k.arg})" in HISTORY)


def version(since: tuple[int, int]) -> str:
    """(2, 6) -> 2.6."""
    return "{}.{}".format(*since)


@rule(80, ERROR)
def removed_name(m: Module) -> Iterator[Hit]:
    """The name is no longer in torch.

    Use its successor.
    """
    for node, name, since, successor in changes(m, "removed"):
        if since <= (m.torch or NEWEST):
            yield Hit(node, f"{name}, gone in {version(since)}", f"Use {successor}.")


@rule(81, WARNING)
def deprecated_name(m: Module) -> Iterator[Hit]:
    """The name is deprecated.

    Use its successor.
    """
    for node, name, since, successor in changes(m, "deprecated"):
        if since <= (m.torch or OLDEST):
            yield Hit(node, name, f"Use {successor}.")


@rule(82, ERROR)
def newer_name(m: Module) -> Iterator[Hit]:
    """The release that --torch names does not have this yet.

    Require a newer torch, or do without it.
    """
    for node, name, since, _ in changes(m, "added"):
        if since > m.torch:
            yield Hit(node, f"{name}, new in {version(since)}")


@rule(83, WARNING)
def private_path(m: Module) -> Iterator[Hit]:
    """The name comes from a private module, which can go with any release.

    Import it from the public module.
    """
    for node in m.nodes[ast.ImportFrom] if (m.torch or OLDEST) >= OLDEST else ():
        place, names = MOVED.get((node.module or "").replace("torch.distributed", "", 1), ("", ""))
        guarded = any(isinstance(n, ast.Try) for n in ancestors(node)) or any(m.guards(node))
        if {alias.name for alias in node.names} <= set(names.split()) and not guarded:
            public, at = f"torch.distributed{place}", m.data.find(node.module.encode(), m.start(node))
            edit = Edit(at, at + len(node.module), public)
            yield Hit(node, node.module, f"Import it from {public}.", (edit,) if at >= 0 else ())


@rule(84, WARNING)
def renamed_variable(m: Module) -> Iterator[Hit]:
    """The environment variable has a new name; the old one is deprecated, or does nothing.

    Put TORCH_ before it.
    """
    for node in (n for n in m.nodes[ast.Constant] if n.value in OLD_VARIABLES):
        around = {word for outer in (node.parent, node.parent.parent) for word in words(outer)}
        if around & {"environ", "getenv"} and not around & {"pop", f"TORCH_{node.value}"}:
            edit = Edit(m.start(node) + 1, m.start(node) + 1, "TORCH_")
            yield Hit(node, node.value, edits=(edit,) if m.source(node)[1:-1] == node.value else ())


@rule(90, NOTE, default=False)
def fsdp1(m: Module) -> Iterator[Hit]:
    """FSDP1 has a successor, FSDP2, which wraps nothing and shards each parameter by itself.

    Call fully_shard on each block, then on the model.
    """
    for call in m.calls[FSDP1]:
        old = [given for given in call.keywords if given.arg in FSDP1_ARGUMENTS]
        yield from (Hit(given.value, given.arg, f"Use {FSDP1_ARGUMENTS[given.arg]}.") for given in old)
        yield Hit(call)
    for method, successor in FSDP1_METHODS.items():
        calls = [*m.calls[f"fsdp.{method}"], *m.on(FSDP1, method)]
        yield from (Hit(call, method, f"Use {successor}.") for call in calls)


# --- checking and mending --------------------------------------------------------------------------------------

_NOQA = re.compile(r"#\s*noqa(?!\w)(:\s*(?P<codes>\w+([,\s]+[A-Z]+\d+)*))?", re.I)


def silenced(line: str, code: str) -> bool:
    """Whether a line's comment turns a rule off."""
    match = _NOQA.search(line)
    return bool(match) and (match["codes"] is None or code in re.split(r"[,\s]+", match["codes"].upper()))


def check(path: str, text: str, rules: Iterable[Rule], torch: tuple[int, int] | None = None) -> list[Finding]:
    """The findings in a file's text, in the order of their places.

    A text that is no Python is one finding, FSDP000.
    """
    try:
        module = Module(path, text, torch)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        place = (getattr(error, "lineno", 1) or 1, getattr(error, "offset", 1) or 1)
        why = f"This cannot be read as Python: {getattr(error, 'msg', error)}."
        return [Finding(path, *place, *place, "FSDP000", "not-python", ERROR, why, "Mend the syntax.")]
    findings = {}
    for of, hit in ((rule, hit) for rule in rules for hit in rule.check(module)):
        node = hit.node if hasattr(hit.node, "lineno") else hit.node.parent
        spots = [(node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)]
        lines = [module.lines[line - 1] for line, _ in spots]
        if not any(silenced(line, of.code) for line in lines):
            # Python counts bytes from 0, people and SARIF count characters from 1.
            place = [n for (line, b), s in zip(spots, lines) for n in (line, len(s.encode()[:b].decode()) + 1)]
            why = f"{hit.about}: {of.why}" if hit.about else of.why
            finding = Finding(path, *place, of.code, of.name, of.level, why, hit.fix or of.fix, hit.edits)
            findings.setdefault((*place[:2], of.code), finding)
    return [findings[key] for key in sorted(findings)]


def mend(text: str, edits: Iterable[Edit]) -> str:
    """The text with edits made, the first of those that overlap; as it was if it would be no Python any more."""
    data, end, parts = text.encode(), 0, []
    for edit in sorted(edits):
        if edit.start >= end:
            parts += [data[end : edit.start], edit.new.encode()]
            end = edit.end
    mended = b"".join([*parts, data[end:]]).decode()
    try:
        ast.parse(mended)
    except (SyntaxError, ValueError):
        return text
    return mended


def mend_all(path: str, text: str, rules: list[Rule], torch: tuple[int, int] | None) -> tuple[str, int]:
    """The text without what can be mended, and how many findings that were."""
    count = 0
    for _ in range(MAX_PASSES):
        fixable = [finding for finding in check(path, text, rules, torch) if finding.edits]
        mended = mend(text, (edit for finding in fixable for edit in finding.edits))
        if mended == text:
            break
        count, text = count + len(fixable), mended
    return text, count


# --- command line ----------------------------------------------------------------------------------------------


class UsageError(Exception):
    """The command line asks for what cannot be done."""


def python_files(names: list[str]) -> Iterator[Path]:
    """The files that are named, and all that are in folders that are named.

    Raises:
        UsageError: There is no such file or folder.
    """
    for path in map(Path, names):
        if not path.exists() and path != STDIN:
            raise UsageError(f"{path}: there is no such file or folder; name a Python file, a folder or - for stdin")
        if path.is_dir():
            for file in sorted(path.rglob("*.py")):
                folders = file.relative_to(path).parts[:-1]
                if SKIPPED_FOLDERS.isdisjoint(folders) and not any(name.startswith(".") for name in folders):
                    yield file
        else:
            yield path


def read(path: Path) -> tuple[str, str]:
    """A file's text, with the line ends that it has, and its encoding.

    Raises:
        UsageError: It cannot be read, or is not in its encoding.
    """
    try:
        data = sys.stdin.buffer.read() if path == STDIN else path.read_bytes()
        encoding = tokenize.detect_encoding(io.BytesIO(data).readline)[0]
        return data.decode(encoding), encoding
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); check its permissions") from error
    except (SyntaxError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: is not in the encoding that it declares ({error}); save it as UTF-8") from error


def choose(select: str, ignore: str) -> list[Rule]:
    """The rules that two lists of codes, or beginnings of codes, leave.

    Raises:
        UsageError: A part of a list fits no rule.
    """
    groups = {"ALL": [*RULES], "DEFAULT": [code for code, rule in RULES.items() if rule.default]}
    codes: list[set[str]] = [set(), set()]
    for chosen, text in zip(codes, (select, ignore)):
        for part in filter(None, text.upper().split(",")):
            fitting = groups.get(part) or [code for code in RULES if code.startswith(part)]
            if not fitting:
                raise UsageError(f"there is no rule {part}; --list names them")
            chosen.update(fitting)
    return [RULES[code] for code in sorted(codes[0] - codes[1])]


def explain(code: str) -> str:
    """What a rule is about, with the guide's examples where the skill is at hand."""
    if code not in RULES:
        raise UsageError(f"there is no rule {code}; --list names them")
    guide = Path(__file__).resolve().parents[1] / "references" / "guide-lint.md"
    text = guide.read_text(encoding="utf-8") if guide.is_file() else ""
    examples = re.search(rf"^#+ {code}\b.*?\n(.*?)(?=^#|\Z)", text, re.M | re.S)
    of = RULES[code]
    about = f"{code} {of.name} ({of.level})\n\n{of.why}\n\nFix: {of.fix}\n"
    return f"{about}\n{examples.group(1).strip()}\n" if examples else about


def as_json(findings: list[Finding], files: int, fixed: int) -> str:
    """The findings for a program."""
    found = [{**f._asdict(), "edits": [edit._asdict() for edit in f.edits]} for f in findings]
    return json.dumps({"files": files, "fixed": fixed, "findings": found}, indent=1)


def as_sarif(findings: list[Finding]) -> str:
    """The findings in SARIF 2.1.0, which code hosts and editors read."""
    rules = [{"id": "FSDP000", "name": "not-python", "fullDescription": {"text": "The file cannot be read as Python."}}]
    rules += [{"id": r.code, "name": r.name, "fullDescription": {"text": r.why}} for r in RULES.values()]
    results = []
    for f in findings:
        region = {"startLine": f.line, "startColumn": f.column, "endLine": f.end_line, "endColumn": f.end_column}
        place = {"artifactLocation": {"uri": Path(f.file).as_posix()}, "region": region}
        message = {"text": f"{f.message} {f.fix}"}
        results.append(
            {"ruleId": f.code, "level": f.level, "message": message, "locations": [{"physicalLocation": place}]}
        )
    tool = {"driver": {"name": "lint_fsdp", "rules": rules}}
    run = {"tool": tool, "columnKind": "unicodeCodePoints", "results": results}
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    return json.dumps({"$schema": schema, "version": "2.1.0", "runs": [run]}, indent=1)


def as_text(findings: list[Finding]) -> str:
    """The findings for a reader."""
    return "\n".join(f"{f.file}:{f.line}:{f.column}: {f.code} {f.level}: {f.message}\n    {f.fix}" for f in findings)


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="lint_fsdp.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("paths", nargs="*", metavar="PATH", help="Python file, folder, or - for stdin")
    parser.add_argument("--fix", action="store_true", help="mend in the files what is safe to mend")
    parser.add_argument("--torch", metavar="X.Y", help="release the code is for (default: all from 2.6 on)")
    parser.add_argument("--select", default="DEFAULT", metavar="CODES", help="only these: FSDP01,FSDP090, DEFAULT, ALL")
    parser.add_argument("--ignore", default="", metavar="CODES", help="not these")
    parser.add_argument("--explain", metavar="CODE", help="why a rule is one, with examples")
    parser.add_argument("--list", action="store_true", help="list the rules")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON")
    form.add_argument("--sarif", action="store_true", help="print SARIF 2.1.0")
    return parser.parse_args(arguments)


def lint(options: argparse.Namespace) -> int:
    """Check all files, print, and return the exit status."""
    try:
        torch = release(options.torch) if options.torch else None
    except ValueError:
        raise UsageError(f"--torch {options.torch} is no release; write it as 2.6") from None
    if not options.paths:
        raise UsageError("no PATH; name a Python file, a folder or - for stdin")
    rules = choose(options.select, options.ignore)
    files, findings, fixed = list(python_files(options.paths)), [], 0
    for path in files:
        text, encoding = read(path)
        if options.fix and path != STDIN:
            text, count = mend_all(str(path), text, rules, torch)
            fixed += count
            if count:
                path.write_bytes(text.encode(encoding))
        findings += check(str(path), text, rules, torch)
    if options.json or options.sarif:
        print(as_sarif(findings) if options.sarif else as_json(findings, len(files), fixed))
    elif findings:
        print(as_text(findings))
    mended = f", {fixed} mended" if options.fix else ""
    print(f"{len(findings)} findings in {len(files)} files{mended}", file=sys.stderr)
    return 1 if findings else 0


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and do what it says."""
    options = parse_arguments(arguments)
    try:
        if options.list:
            print("\n".join(f"{r.code} {r.name}: {r.why}" for r in RULES.values()))
        elif options.explain:
            print(explain(options.explain.upper()), end="")
        else:
            return lint(options)
    except UsageError as error:
        print(f"lint_fsdp.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

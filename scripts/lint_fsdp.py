#!/usr/bin/env python3
"""Find mistakes in distributed PyTorch training code by reading it; nothing is run.

    lint_fsdp.py [--fix] [--torch 2.6] [--json | --sarif] PATH...

``# noqa: FSDP012`` silences a line. Needs only Python 3.9. Exit 0: clean, 1: findings, 2: wrong usage.
"""

import argparse
import ast
import io
import json
import re
import sys
from collections import defaultdict
from pathlib import Path

# Patterns see a statement a line in Python's own spelling, with full names: torch.distributed.fsdp.fully_shard(model).
# find: in the statement; where: or in what its names were given; when: in a test before it; earlier, later: in what its
# function does; needs, unless: in the file; if: CONDITIONS; edit: what --fix replaces. \1 is what the first group found.
TABLE = r"""
FSDP001 optimizer-before-sharding
why: The optimizer keeps the unsharded parameters.
fix: Make it after sharding.
find: \btorch\.optim\.\w+\(
where: ([\w.]+)\.(?:named_)?parameters\(
later: (?:<1>|<2>)\1\b

FSDP002 root-only-sharding warning
why: Only the root is sharded: all is gathered at once.
fix: Shard each block first (FSDP1: auto_wrap_policy).
find: (?:<1>|<2>)([\w.]+)\b(?!.*(?:\*\*|auto_wrap_policy| for ))
needs: ^\1 = .*\bAutoModel|^class (?P<c>\w+)\b.*\n(?:(?!class ).*\n)*?.*ModuleList\((?s:.*)^\1 = (?P=c)\(
unless: <2>(?s:.*)<2>|<1>(?s:.*)<1>|\b(?:enable_)?wrap\(|apply\(
if: no_loop

FSDP003 root-before-blocks
why: The root takes the blocks' parameters.
fix: Shard the root last.
find: <2>([\w.]+)
later: ^for .* in .*\b\1\..*\n(?:.*\n)??.*<2>
if: no_loop

FSDP004 forward-called
why: forward() passes by the hooks that gather weights.
fix: Call the module itself.
find: <x>\.forward\(
needs: <2>\1\b
unless: <1>
edit: \1\.forward\( => \1(

FSDP005 fsdp1-argument
why: fully_shard has no argument or policy of FSDP1.
find: <use>
where: \A.*<2>

FSDP006 fsdp1-method
why: A model that fully_shard sharded has no method of FSDP1.
find: <x>\.(<old>)\(
needs: <2>\1\b
unless: <1>

FSDP009 fsdp1 note
why: FSDP1 has a successor, FSDP2.
find: <use>
where: \A.*\.FullyShardedDataParallel[(.]|\.(?:no_sync|clip_grad_norm_)\((?s:.*)<1>

FSDP011 accumulation-reduces warning
why: Accumulation reduces gradients at every micro-batch.
fix: Call no_sync() or set_requires_gradient_sync(False) for all but the last.
find: (?i)(?:opt|scaler)[\w.]*\.step\(
when: %
needs: <1>|<2>|\.DistributedDataParallel\(
unless: no_sync|set_requires_gradient_sync|set_is_last_backward|accumulate\(
if: training

FSDP012 wrong-clip
why: It clips by the norm of one rank.
fix: Call model.clip_grad_norm_(max_norm).
find: torch\.nn\.utils\.\S*clip_grad_norm_\(([\w.]+)\.parameters\(
needs: ^\1 = <1>
unless: NO_SHARD|<2>

FSDP013 clip-before-unscale
why: Gradients are clipped while scaled.
fix: Call scaler.unscale_(optimizer) before.
find: clip_grad_(?:norm|value)_\(
needs: \.scale\(.*\)\.backward\(
unless: unscale_

FSDP014 plain-scaler-under-fsdp1
why: Ranks see overflow in their own shards only.
fix: Use ShardedGradScaler.
find: \.amp\.\S*GradScaler\(
needs: <1>
unless: ShardedGradScaler|NO_SHARD|<2>|\.DistributedDataParallel\(

FSDP016 autocast-against-policy warning
why: autocast is float16, the policy bfloat16.
fix: Leave the type to the policy.
find: torch\S*\.autocast\((?!.*enabled=).*(?:torch\.float16|'cuda'\))
needs: param_dtype=torch\.bfloat16
unless: param_dtype=torch\.float16

FSDP020 device-not-set warning
why: NCCL starts with GPU 0 current everywhere.
fix: Call torch.cuda.set_device before.
find: <d>init_process_group\(.*'nccl'
needs: \.cuda\(\)|\.to\('cuda'\)
unless: set_device|device_id|VISIBLE|local_rank
if: script

FSDP021 rank-confused
why: RANK counts over all nodes, LOCAL_RANK on one.
fix: Use LOCAL_RANK for devices, RANK for data and groups.
find: torch\.(?:cuda\.set_device|device)\((?:f?'cuda:?(?:\{|', ))?(?!\S*local)([\w.]+(?:\(\))?)[^,%]*\)|(?:Sampler|init_process_group)\(.*\brank=((?:\w+\.)*local_rank)\b
earlier: ^\1 = [^%\n]*(?:\bRANK\b|get_rank\(\))[^%\n]*$|\1(?<=get_rank\(\))|\1(?<=local_rank)

FSDP022 group-not-destroyed warning
why: The process group is never destroyed.
fix: Call destroy_process_group() at the end.
find: <d>init_process_group\(
unless: destroy_process_group|Accelerator|end_training
if: script

FSDP030 collective-on-one-rank
why: Only some ranks call this, and wait forever.
fix: Let all ranks call it.
find: <d>(?!.*(?:group|_pg\b|\*\*|no_dist|ranks=))(?:\S+\.)?((?:all_|reduce|broadcast|gather|scatter)\w+|barrier|get_\w*state_dict|init_device_mesh|save|load)\(|\.(full_tensor)\(|\.(state_dict)\(\)
where: \A.*(?:<d>|full_tensor)|<1>
if: one_side

FSDP040 epoch-not-set warning
why: The sampler shuffles every epoch alike.
fix: Call sampler.set_epoch(epoch).
find: ^(?!.*(?:val|test)).*\.DistributedSampler\((?!.*(?:shuffle=False|\*\*))
needs: ^for \w*epoch
unless: set_epoch
if: script

FSDP041 no-distributed-sampler
why: Every rank trains on the same samples.
fix: Pass a DistributedSampler.
find: torch\S*\.DataLoader\(
where: \A(?s:(?!.*(?:sampler|val|test|rank|\*\*)))
needs: \.backward\(
unless: DistributedSampler|split_dataset|IterableDataset|Accelerator|shard\(|Subset
if: script

FSDP043 same-seed
why: Every rank draws the same batches.
fix: Then seed with seed + rank.
find: torch\.(?:randn|rand|randint)\((?!.*generator=)
needs: manual_seed\(
unless: seed.*rank|rank.*seed
if: script training

FSDP044 uneven-batches warning
why: Ranks with one batch more wait in it.
fix: Cut to the shortest, or use Join.
find: \[[^\]]*rank[^\]]*:[^\]]*:[^\]]*(?:world_size|num_replicas)
needs: \.backward\(
unless: [Jj]oin\b|drop_last|MIN|Sampler|//

FSDP050 save-of-shards
why: torch.save writes this rank's shards only.
fix: Use dcp.save on all ranks.
find: torch\.save\(
where: ([\w.]+)\.state_dict\(\)
needs: <2>\1\b|<2>(?s:.*)^\1 = torch\.optim
unless: full_tensor|<1>

FSDP051 full-state-on-every-rank warning
why: Every rank's GPU gets the whole model.
fix: Add cpu_offload=True, or FullStateDictConfig(True, True) with FSDP1.
find: \.get_(?:model_|optimizer_)?state_dict\(|\.state_dict_type\(
where: Options\((?!.*(?:cpu_offload|broadcast)).*full_state_dict=True|, \S+\.FULL_STATE_DICT\)

FSDP052 one-file-many-writers
why: All ranks write the same file at once.
fix: Write on rank 0, or use dcp.save.
find: torch\.save\(
where: \A(?s:(?!.*rank))
unless: BytesIO
if: script all_ranks

FSDP060 nothing-initialised
why: to_empty leaves memory that nothing fills.
fix: Initialise all, or load a checkpoint.
find: \.to_empty\(.*device=
unless: init_(?!process|device)|_init\b|initial|reset_param|load(?!er)|set_\w*state_dict|(?:copy|normal|fill)_

FSDP061 buffer-lost
why: Only the constructor fills it, and on meta that is lost.
fix: Compute it again after to_empty.
find: \.register_buffer\('(\w+)', (?!.*None)
when: ^def __init__
needs: to_empty\(
unless: \.\1(?: =|\.\w+_\()|_\(\S*\.\1\b

FSDP070 print-on-every-rank warning
why: Every rank prints in every step.
fix: Print on rank 0.
find: ^print\(
when: \A(?s:(?!.*(?:%|log|every)))
if: script training all_ranks

FSDP071 item-every-step warning
why: item() makes the CPU wait for the GPU in every step.
fix: Add up tensors; read them later.
find: ^(?!print).*\.item\(\)
when: \A(?s:(?!.*(?:%|log|every)))
if: script training all_ranks

FSDP073 find-unused-parameters note
why: It walks the graph in every step.
fix: Remove it unless some parameters get no gradient.
find: DistributedDataParallel\(.*find_unused_parameters=True

FSDP080 removed-name
why: It is there no longer.
if: unguarded

FSDP081 deprecated-name warning
why: It is deprecated.
if: unguarded

FSDP082 added-name
why: This torch does not have it yet.
fix: Require a newer torch, or do without.
if: unguarded

FSDP083 private-path warning
why: A private module can go with any release.
fix: Import from torch.distributed.fsdp or .tensor.
find: ^import (?:<d>(?:_composable\.fsdp|_tensor)\.(?:fully_shard|distribute_\w+|[A-Z]\w+)(?:, |$))+$
if: unguarded
edit: \._(?:composable\.)?(?P<a>fsdp|tensor)\b => .\g<a>
"""
# What FSDP2 has for the arguments and methods of FSDP1.
REPLACED = """\
FullyShardedDataParallel fully_shard
sharding_strategy reshard_after_forward, or a 2-D mesh
auto_wrap_policy fully_shard on each block
mixed_precision mp_policy
cpu_offload offload_policy
backward_prefetch set_modules_to_backward_prefetch
forward_prefetch set_modules_to_forward_prefetch
ignored_modules ignored_params
ignored_states ignored_params
param_init_fn to_empty, then initialise
device_id mesh
sync_module_states broadcast_from_rank0=True
limit_all_gathers nothing
use_orig_params nothing
process_group mesh
device_mesh mesh
no_sync set_requires_gradient_sync
clip_grad_norm_ torch.nn.utils.clip_grad_norm_
summon_full_params unshard, or full_tensor
state_dict_type get_model_state_dict
set_state_dict_type get_model_state_dict
optim_state_dict get_optimizer_state_dict
optim_state_dict_to_load set_optimizer_state_dict
register_comm_hook set_all_reduce_hook
MixedPrecision MixedPrecisionPolicy
CPUOffload CPUOffloadPolicy
"""
# What happened to name=successor or name(parameter) when (2.4: or before). . is torch.distributed, @ FSDPModule.
HISTORY = """\
removed 2.6 ._composable.fully_shard=.fsdp.fully_shard
deprecated 2.4 torch.cuda.amp.GradScaler=torch.amp.GradScaler torch.cuda.amp.autocast=torch.amp.autocast .checkpoint.save_state_dict=.checkpoint.save .checkpoint.load_state_dict=.checkpoint.load
deprecated 2.8 @set_reduce_scatter_divide_factor=@set_gradient_divide_factor
deprecated 2.13 .all_gather_into_tensor=.all_gather_single .reduce_scatter_tensor=.reduce_scatter_single
added 2.6 .fsdp.fully_shard .fsdp.FSDPModule .fsdp.MixedPrecisionPolicy
added 2.7 .fsdp.fully_shard(ignored_params) @set_all_reduce_hook
added 2.8 @set_gradient_divide_factor @set_reshard_after_forward .checkpoint.HuggingFaceStorageReader
added 2.9 .device_mesh.init_device_mesh(backend_override) .checkpoint.async_save(async_stager)
added 2.10 .fsdp.share_comm_ctx
added 2.12 .fsdp.fully_shard(dp_mesh_dims)
added 2.13 .all_gather_single .reduce_scatter_single
"""
BLOCKS = ("body", "orelse", "handlers", "finalbody", "cases")
ONE_RANK = re.compile(
    r"(not )?(?:\w+\.)*(?:((?:global_|world_|local_)?rank|get_rank\(\))(?: (==|in|!=|>|not in) [\[({]?(?:-1, )?0\D*)?"
    r"|is_\w*(?:main|master|zero|rank0)\w*(?:\(\))?)"
)
RANKISH = re.compile("rank|is_(main|master)|global_zero|main_process|process_index", re.I)
GUARD = re.compile(r"^try$|version|after|hasattr|isinstance|available|is_torch|torch_\d|greater|TYPE_CHECKING", re.I)


class Module:
    """Statements with text (without blocks), scope (the function), loop, guards (tests before, and the answers)."""

    def __init__(self, source):
        tree, names, self.given = ast.parse(source), {}, defaultdict(list)
        nodes = [*ast.walk(tree)]
        for node in nodes:
            for alias in node.names if isinstance(node, (ast.Import, ast.ImportFrom)) else ():
                names[alias.asname or alias.name] = f"{getattr(node, 'module', '')}.{alias.name}".lstrip(".")
        for node in nodes:
            if isinstance(node, ast.Name):
                node.id = names.get(node.id, node.id)
            elif isinstance(node, ast.Constant) and " " in str(node.value):
                node.value = ""
        self.statements = [*statements(tree)]
        self.text = "\n".join(s.text for s in self.statements)
        for name, value in re.findall(r"^([\w.]+)(?:: .+?)? = (.*)$", self.text, re.M):
            self.given[name].append(value)
        runs = re.search(r"^(if __name__|\w*main\w*\(|\S*init_process)", source, re.M)
        self.is_script = runs and "distributed.init_process_group(" in self.text and "TestCase" not in source
        self.loops = [s.loop for s in self.statements if s.loop and ".backward(" in s.text]

    def expand(self, text):
        """An expression, and in further lines what the names in it were given."""
        names = {n for name in re.findall(r"[\w.]+", text) for n in (name, name.rpartition(".")[0])}
        return "\n".join([text, *(value for name in names for value in self.given.get(name, ()))])

    def region(self, field, index):
        s = self.statements[index]
        if field == "where":
            return self.expand(s.text)
        if field == "when":
            return "\n".join(test for test, _ in s.guards)
        if field in ("earlier", "later"):
            near = self.statements[: index + 1] if field == "earlier" else self.statements[index + 1 :]
            same = [t for t in near if t.scope is s.scope and (field == "earlier" or {*s.guards} <= {*t.guards})]
            return "\n".join(t.text for t in same)
        return self.text

    def sites(self, function):
        """Where the file calls a function of its own, but for itself."""
        name = getattr(function, "name", "?")
        call = re.compile(rf"(?<![\w.])(?<!def )(self\.)?{re.escape(name)}\(")
        return [s for s in self.statements if name in s.text and call.search(s.text) and s.scope is not function]


def statements(parent, head="", scope=None, loop=None, guards=()):
    for field in BLOCKS:
        behind = guards
        if isinstance(parent, (ast.If, ast.Try)):
            behind += ((head[3:-1] or "try", field == "body"),)
        inner = parent if isinstance(parent, (ast.For, ast.While)) and field == "body" else loop
        for node in getattr(parent, field, ()):
            blocks = {name: [] for name in BLOCKS if hasattr(node, name)}
            bare = type(node)(**{**vars(node), **blocks}) if blocks else node
            text = ast.unparse(bare).replace("\n", " ").strip()
            if isinstance(node, ast.ImportFrom):
                text = "import " + ", ".join(f"{node.module}.{alias.name}" for alias in node.names)
            node.text, node.scope, node.loop, node.guards = text, scope, inner, behind
            if hasattr(node, "lineno"):
                yield node
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield from statements(node, text, node, None, ((text.partition("(")[0], True),))
            else:
                yield from statements(node, text, scope, inner, behind)
            if isinstance(node, ast.If) and isinstance(node.body[-1], (ast.Return, ast.Continue)):
                behind += ((text[3:-1], False),)


def some_ranks(m, s, depth=3):
    """Whether a test of ranks stands before a statement, or wherever its function is called."""
    sites = m.sites(s.scope) if depth else []
    before = any(RANKISH.search(m.expand(test)) for test, _ in s.guards)
    return before or (bool(sites) and all(some_ranks(m, site, depth - 1) for site in sites))


def side(m, s, depth=2):
    """1 if one rank alone comes to a statement, -1 if the others do, 0 if all do or who knows."""
    for test, answer in reversed(s.guards):
        for match in map(ONE_RANK.fullmatch, re.split(" and " if answer else " or ", test)):
            if match:
                one = not match[2] or match[3] in ("==", "in")
                return 1 if (one != bool(match[1])) == answer else -1
    sides = {side(m, site, depth - 1) for site in m.sites(s.scope)} if depth else ()
    return sides.pop() if len(sides) == 1 else 0


def one_side(m, s, _):
    """Whether one side alone comes to a statement, the other to none that calls the same."""
    mine, others = side(m, s), {(test, not answer) for test, answer in s.guards}
    call = "|".join(map(re.escape, re.findall(r"\w+\(", s.text)))
    near = [t for t in m.statements if mine and t.scope is s.scope and re.search(call, t.text)]
    return mine and not any(side(m, t) == -mine or others & {*t.guards} for t in near)


def unguarded(m, s, name):
    """Whether a name is spelled out here, and no test of torch before it."""
    imported = re.search(rf"^import .*{re.escape(name)}(,|$)", m.text, re.M) and not s.text.startswith("import ")
    return not imported and " else " not in s.text and not any(GUARD.search(test) for test, _ in s.guards)


CONDITIONS = {
    "script": lambda m, s, _: m.is_script,
    "training": lambda m, s, _: s.loop in m.loops,
    "all_ranks": lambda m, s, _: not some_ranks(m, s),
    "one_side": one_side,
    "no_loop": lambda m, s, _: not s.loop,
    "unguarded": unguarded,
}


def fitting(m, rule):
    """The statements that a rule's patterns fit, and the names that they catch."""
    for index, s in enumerate(m.statements if re.search(rule["find"], m.text, re.M) else ()):
        for match in re.finditer(rule["find"], s.text):
            names = [name for name in match.groups() if name]
            for field in (f for f in ("where", "when", "earlier", "later", "needs", "unless") if f in rule):
                pattern = rule[field].replace(r"\1", re.escape(names[0]) if names else "")
                found = re.search(pattern, m.region(field, index), re.M)
                if bool(found) == (field == "unless"):
                    break
                names = names or [*(found.groups() if found else [])]
            else:
                if all(CONDITIONS[condition](m, s, match[0]) for condition in rule.get("if", "").split()):
                    yield s, names[-1] if names else ""


def release(version):
    major, minor, *_ = re.split(r"[.+]", version)
    return int(major), int(minor)


REPLACED = dict(line.split(" ", 1) for line in REPLACED.splitlines())
MACROS = {
    "<1>": r"torch[\w.]*\.FullyShardedDataParallel\(",
    "<2>": r"torch[\w.]*\.fully_shard\(",
    "<x>": r"(?<![\w.])([\w.]+)",
    "<d>": r"torch\.distributed\.",
    "<old>": "|".join(REPLACED),
    "<use>": rf"\b({'|'.join(REPLACED)})(?:\(|(?<!_dict)(?<!_type)=)",
}
RULES = {}
for block in re.sub("|".join(MACROS), lambda match: MACROS[match[0]], TABLE).strip().split("\n\n"):
    head, *fields = block.split("\n")
    code, name, level = f"{head} error".split()[:3]
    about = dict(field.split(": ", 1) for field in fields)
    RULES[code] = {"fix": "Use its successor:", **about, "code": code, "name": name, "level": level}


def chosen(codes="", torch=None):
    """The rules of these codes, or all but notes."""
    rules = [r for code, r in RULES.items() if (code in codes.upper() if codes else r["level"] != "note")]
    for change, since, *names in map(str.split, HISTORY.splitlines()):
        there = release(since) <= (torch or release("2.6" if change == "deprecated" else "2.14"))
        for rule in [r for r in rules if r["name"] == f"{change}-name" and there != (change == "added")]:
            for name, _, new in (name.partition("=") for name in names):
                find = re.sub(r"\((\w+)\)", r"\\((?:.*\\W)?\1\\b(?==)", name.replace("@", r"\b"))
                about = {
                    "find": rf"(?<![*'])({'torch.distributed' * (name[0] == '.')}{find})\b",
                    "why": f"{rule['why'][:-1]} ({since}).",
                }
                rules.append({**rule, **about, "fix": f"Use {new}." if new else rule["fix"]})
    return [rule for rule in rules if "find" in rule]


def check(path, source, rules):
    """The findings in a file's text, by place; a text that is no Python is one."""
    lines, found = [*io.StringIO(source, newline="")], {}
    try:
        m = Module(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        place = {"file": path, "line": getattr(error, "lineno", 1) or 1, "column": 1, "fix": "Mend it."}
        return [{**place, "code": "FSDP000", "name": "not-python", "level": "error", "why": str(error)}]
    for rule in rules:
        for s, about in fitting(m, rule):
            first, body = s.lineno, getattr(s, "body", None)
            last = max(first, body[0].lineno - 1) if body else s.end_lineno
            place = {"file": path, "line": first, "column": s.col_offset + 1, "last": last}
            fix = f"{rule['fix']} {REPLACED[about]}." if about in REPLACED else rule["fix"]
            finding = {**rule, **place, "about": about, "why": f"{about}: {rule['why']}".lstrip(": "), "fix": fix}
            if not re.search(rf"# *noqa(?!\w|:)|# *noqa:.*\b{rule['code']}\b", "".join(lines[first - 1 : last]), re.I):
                found[first, place["column"], rule["code"], about] = finding
    return [found[key] for key in sorted(found)]


def mend(source, findings):
    """The text with its edits, unless that is no Python."""
    lines = [*io.StringIO(source, newline="")]
    for f in (f for f in findings if "edit" in f):
        part = slice(f["line"] - 1, f["last"])
        new = re.sub(*f["edit"].replace(r"\1", f["about"]).split(" => "), "".join(lines[part]), count=1)
        lines[part] = [new, *[""] * (len(lines[part]) - 1)]
    mended = "".join(lines)
    return source if check("", mended, []) else mended


def explain(rule):
    guide = Path(__file__).resolve().parents[1] / "references/guide-lint.md"
    text = guide.read_text(encoding="utf-8") if guide.is_file() else ""
    section = re.search(rf"^#+ {rule['code']}\b.*\n((?:(?!#).*\n)*)", text, re.M)
    example = section[1] if section else f"Examples: references/guide-lint.md, not at {guide}\n"
    return "{code} {name} ({level})\n{why}\nFix: {fix}\n".format(**rule) + example


def sarif(findings):
    results = []
    for f in findings:
        region = {"startLine": f["line"], "startColumn": f["column"]}
        place = {"artifactLocation": {"uri": Path(f["file"]).as_posix()}, "region": region}
        about = {"ruleId": f["code"], "level": f["level"], "message": {"text": f"{f['why']} {f['fix']}"}}
        results.append({**about, "locations": [{"physicalLocation": place}]})
    rules = [{"id": code, "fullDescription": {"text": rule["why"]}} for code, rule in RULES.items()]
    run = {"tool": {"driver": {"name": "lint_fsdp", "rules": rules}}, "results": results}
    return {"version": "2.1.0", "runs": [run]}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("paths", nargs="*", metavar="PATH", help="file or folder")
    parser.add_argument("--fix", action="store_true", help="mend what is safe")
    parser.add_argument("--torch", type=release)
    parser.add_argument("--select", default="", help="only FSDP012,FSDP073")
    parser.add_argument("--explain", help="tell of a rule")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--sarif", action="store_true")
    options = parser.parse_args(arguments)
    if options.explain:
        if options.explain.upper() not in RULES:
            parser.error(f"no rule {options.explain}; there are {', '.join(RULES)}")
        print(explain(RULES[options.explain.upper()]), end="")
        return 0
    rules = chosen(options.select, options.torch)
    if not rules or not options.paths:
        parser.error("no PATH, or no such rule")
    paths = [(p, file) for p in map(Path, options.paths) for file in (p.rglob("*.py") if p.is_dir() else [p])]
    skipped = re.compile(r"/(\.\w|venv/)")
    files, findings = sorted(file for p, file in paths if not skipped.search(f"/{file.relative_to(p)}")), []
    try:
        for path in files:
            source = path.read_bytes().decode("utf-8-sig", "surrogateescape")
            found = check(str(path), source, rules)
            if options.fix and (mended := mend(source, found)) != source:
                path.write_bytes(mended.encode(errors="surrogateescape"))
                found = check(str(path), mended, rules)
            findings += found
    except OSError as error:
        parser.error(str(error))
    if options.json:
        shown = ("file", "line", "column", "code", "name", "level", "why", "fix")
        print(json.dumps([{name: f[name] for name in shown} for f in findings], indent=1))
    elif options.sarif:
        print(json.dumps(sarif(findings), indent=1))
    else:
        for f in findings:
            print("{file}:{line}:{column}: {code} {level}: {why}\n    {fix}".format(**f))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())

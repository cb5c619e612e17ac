import ast
import functools
import json
import os
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path
from textwrap import dedent

import pytest

from skill_builder.errors import HistoryError
from skill_builder.history import (
    HISTORY_FILE,
    Change,
    Deprecation,
    Fact,
    History,
    add_release,
    load_history,
    read_release,
    read_wheel,
    save_history,
)
from skill_builder.history.facts import parameters_of
from skill_builder.history.guide import with_tables
from skill_builder.history.storage import encode
from skill_builder.skill.assemble import sources
from tests.documentation_site import serve

FSDP = "torch.distributed.fsdp"
COMPOSABLE = "torch.distributed._composable.fsdp"
DCP = "torch.distributed.checkpoint"


@pytest.fixture(scope="module")
def history():
    return load_history()


# What two releases' sources, read side by side, say.


@pytest.mark.parametrize(
    ("name", "since", "until"),
    [
        (f"{FSDP}.fully_shard", "2.6", None),
        (f"{FSDP}.FSDPModule.set_all_reduce_hook", "2.7", None),
        (f"{FSDP}.FSDPModule.set_gradient_divide_factor", "2.8", None),
        (f"{FSDP}.FSDPModule.set_reshard_after_forward", "2.8", None),
        (f"{FSDP}.FSDPModule.set_custom_all_gather", "2.9", None),
        (f"{FSDP}.FSDPModule.reset_iter_state", "2.13", None),
        (f"{FSDP}.share_comm_ctx", "2.10", None),
        (f"{FSDP}.FullyShardedDataParallel", None, None),
        (f"{COMPOSABLE}.fully_shard", None, None),
        (f"{DCP}.HuggingFaceStorageWriter", "2.8", None),
        (f"{DCP}.FileSystemWriter.metadata_path", None, "2.8"),
        ("torch.distributed.tensor.DTensor", "2.5", None),
        ("torch.distributed.tensor.experimental.context_parallel", "2.6", None),
        ("torch.distributed.tensor.parallel.PrepareModuleInputOutput", "2.8", None),
        ("torch.distributed._tensor.debug.CommDebugMode", None, "2.4"),
        ("torch.distributed._dist2", "2.9", "2.13"),
        ("torch.distributed.ProcessGroupCudaP2P", None, "2.4"),
        ("torch.distributed.pipelining.ScheduleFlexibleInterleaved1F1B", "2.5", "2.5"),
        ("torch.distributed.split_group", "2.5", None),
        ("torch.distributed.shrink_group", "2.10", None),
        ("torch.distributed.all_gather_single", "2.13", None),
        ("torch.nn.utils.get_total_norm", "2.6", None),
        ("torch.utils.checkpoint.create_selective_checkpoint_contexts", "2.5", None),
    ],
)
def test_a_release_adds_or_removes_an_object(history, name, since, until):
    found = history.object(name)
    assert (found.since, found.until) == (since, until)


@pytest.mark.parametrize(
    ("name", "parameter", "since", "until"),
    [
        (f"{FSDP}.fully_shard", "ignored_params", "2.7", None),
        (f"{FSDP}.fully_shard", "dp_mesh_dims", "2.12", None),
        (f"{FSDP}.fully_shard", "mesh", "2.6", None),
        (f"{COMPOSABLE}.fully_shard", "shard_placement_fn", "2.6", None),
        (f"{DCP}.save", "use_collectives", "2.9", None),
        (f"{DCP}.async_save", "async_checkpointer_type", "2.7", None),
        (f"{DCP}.HuggingFaceStorageWriter", "save_sharded", "2.8", "2.8"),
        ("torch.distributed.broadcast", "group_src", "2.6", None),
        ("torch.distributed.device_mesh.init_device_mesh", "backend_override", "2.9", None),
        (
            "torch.distributed.pipelining.schedules.PipelineScheduleMulti",
            "stage_index_to_group_rank",
            "2.5",
            "2.6",
        ),
        ("torch.distributed.tensor.distribute_tensor", "src_data_rank", "2.7", None),
        ("torch.nn.parallel.DistributedDataParallel", "init_sync", "2.7", None),
        ("torch.nn.parallel.DistributedDataParallel", "module", None, None),
        # Before 2.14 it came with **kwargs, of which the signature says nothing.
        ("torch.utils.checkpoint.checkpoint", "preserve_rng_state", None, None),
    ],
)
def test_a_release_adds_or_removes_a_parameter(history, name, parameter, since, until):
    found = history.object(name).parameters[parameter]
    assert (found.since, found.until) == (since, until)


@pytest.mark.parametrize(
    ("name", "parameter", "defaults"),
    [
        (f"{FSDP}.fully_shard", "reshard_after_forward", [("2.6", "True"), ("2.8", "None")]),
        (f"{COMPOSABLE}.fully_shard", "reshard_after_forward", [("2.4", "True"), ("2.8", "None")]),
        ("torch.distributed.broadcast", "src", [("2.4", None), ("2.6", "None")]),
        ("torch.distributed.scatter", "src", [("2.4", "0"), ("2.6", "None")]),
        (
            "torch.nn.parallel.DistributedDataParallel",
            "broadcast_buffers",
            [("2.4", "True"), ("2.13", "None")],
        ),
    ],
)
def test_a_release_changes_a_default(history, name, parameter, defaults):
    assert history.object(name).parameters[parameter].defaults == tuple(Change(*pair) for pair in defaults)


@pytest.mark.parametrize(
    ("name", "since", "replacement"),
    [
        (
            f"{FSDP}.FSDPModule.set_reduce_scatter_divide_factor",
            "2.8",
            f"{FSDP}.FSDPModule.set_gradient_divide_factor",
        ),
        ("torch.distributed.all_gather_into_tensor", "2.13", "torch.distributed.all_gather_single"),
        ("torch.distributed._symmetric_memory.enable_symm_mem_for_group", "2.11", None),
        ("torch.distributed.nn.all_reduce", "2.12", "torch.distributed._functional_collectives.all_reduce"),
        ("torch.cuda.amp.GradScaler", None, "torch.amp.GradScaler"),
        (
            f"{FSDP}.FullyShardedDataParallel.full_optim_state_dict",
            None,
            f"{FSDP}.FullyShardedDataParallel.optim_state_dict",
        ),
        ("torch.distributed.launch.main", None, "torchrun"),
    ],
)
def test_a_release_deprecates_an_object(history, name, since, replacement):
    assert history.object(name).deprecated == Deprecation(since, replacement)
    assert history.replacement(name) == replacement


def test_a_release_deprecates_a_parameter(history):
    parameters = history.object("torch.nn.parallel.DistributedDataParallel").parameters
    assert parameters["broadcast_buffers"].deprecated == Deprecation("2.13", "forward_sync_buffers")
    assert parameters["check_reduction"].deprecated == Deprecation(None, None)
    assert parameters["module"].deprecated is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (f"{COMPOSABLE}.fully_shard", f"{FSDP}.fully_shard"),
        (f"{COMPOSABLE}.FSDPModule.unshard", f"{FSDP}.FSDPModule.unshard"),
        ("torch.distributed._tensor.DTensor", "torch.distributed.tensor.DTensor"),
        ("torch.distributed._tensor.zeros", "torch.distributed.tensor.zeros"),
        ("torch.distributed._tensor.debug.CommDebugMode", "torch.distributed.tensor.debug.CommDebugMode"),
    ],
)
def test_an_old_name_leads_to_the_new_one_and_back(history, old, new):
    assert history.object(old).moved_to == new
    assert history.object(new).moved_from == old
    assert history.replacement(old) == new


@pytest.mark.parametrize(
    ("name", "version", "replacement"),
    [
        (f"{FSDP}.fully_shard", "2.5", f"{COMPOSABLE}.fully_shard"),
        (f"{COMPOSABLE}.fully_shard", "2.5", None),
        (f"{COMPOSABLE}.fully_shard", "2.6", f"{FSDP}.fully_shard"),
        ("torch.distributed.all_gather_single", "2.12", "torch.distributed.all_gather_into_tensor"),
        (
            f"{FSDP}.FSDPModule.set_gradient_divide_factor",
            "2.7",
            f"{FSDP}.FSDPModule.set_reduce_scatter_divide_factor",
        ),
        ("torch.distributed.launch.main", "2.4", "torchrun"),
        (f"{FSDP}.share_comm_ctx", "2.9", None),
    ],
)
def test_a_release_gets_the_replacement_that_it_has(history, name, version, replacement):
    assert history.replacement(name, version) == replacement


def test_a_method_that_is_new_under_both_names_of_its_class_did_not_move(history):
    assert history.object(f"{FSDP}.FSDPModule.set_all_reduce_hook").moved_from is None


# The installed torch, asked by inspect.

MISSING_AT_RUNTIME = {
    "ProcessGroupMPI": "only in builds with MPI",
    "ProcessGroupNCCL": "only in builds with CUDA",
    "ProcessGroupUCC": "only in builds with UCC",
    "ProcessGroupXCCL": "only in builds with XPU",
}
"""By the last part of the name."""

NOT_READ = {
    "torch.distributed.flight_recorder.components.builder.tabulate": (
        "a stand-in for a package that is not installed; with it, the name is that package's"
    ),
    "torch.distributed.Backend.FAKE": "before 2.11 set by a test module when it is imported",
    "torch.distributed.distributed_c10d.Backend.FAKE": "the same",
}

OTHERWISE_MADE = {
    "torch.distributed.rpc.BackendType": "an enumeration that a function makes; listed as a value",
    "torch.distributed.rpc.backend_registry.BackendType": "the same",
    "torch.distributed.rpc.new_method": "what a loop over methods leaves behind; listed as a value",
    "torch.distributed.rpc.api.new_method": "the same",
    "torch.nn.parallel.DistributedDataParallelCPU": "its deprecation hides the constructor it inherits",
    "torch.distributed._functional_collectives.is_torchdynamo_compiling": "imported from elsewhere in torch",
}

KINDS = {
    "class": ("class",),
    "module": ("module",),
    "property": ("property",),
    "routine": ("function", "method"),
    "value": ("attribute", "value"),
}


@functools.cache
def installed_version():
    return version("torch").partition("+")[0]


needs_covered_torch = pytest.mark.skipif(
    installed_version() not in load_history().versions, reason="the history covers another patch release"
)


@pytest.fixture(scope="module")
def installed(history):
    names = list(history.snapshot_for(installed_version()).facts)
    script = Path(__file__).with_name("inspect_torch.py")
    done = subprocess.run(
        [sys.executable, str(script)],
        input=json.dumps(names),
        capture_output=True,
        text=True,
        check=True,
        timeout=280,
    )
    return json.loads(done.stdout)


def differences(history, name, there):
    """What the history and ``inspect`` say differently about one name."""
    fact = history.fact_in(name, installed_version())
    if fact is None:
        return [] if name in NOT_READ else [f"{name}: the history lacks it"]
    if there is None:
        return [] if name.rpartition(".")[2] in MISSING_AT_RUNTIME else [f"{name}: torch lacks it"]
    if name in OTHERWISE_MADE or (fact.kind == "unknown" and is_out_of_sight(history, name, there)):
        return []
    if fact.kind not in KINDS[there["kind"]]:
        return [f"{name}: {fact.kind} is a {there['kind']}"]
    return parameter_differences(name, fact, there)


def is_out_of_sight(history, name, there):
    owner = history.fact_in(name.rpartition(".")[0], installed_version())
    above = [history.fact_in(base, installed_version()) for base in owner.bases]
    is_bound = any(fact is None or fact.kind in ("unknown", "value") for fact in [owner, *above])
    return is_bound or there["made"] in ("C++", "exception")


def parameter_differences(name, fact, there):
    if there["kind"] not in ("class", "routine") or there["made"] in ("enum", "protocol"):
        return []
    if fact.signature is None:
        return [] if there["made"] in ("C++", "exception") else [f"{name}: its parameters should be known"]
    ours = [[p.name, p.kind, p.default is not None] for p in parameters_of(fact.signature)]
    theirs = [parameter[:3] for parameter in there["parameters"]]
    if ours != theirs:
        return [f"{name}: {ours} against {theirs}"]
    pairs = zip(parameters_of(fact.signature), there["parameters"], strict=True)
    wrong = [p for p, (*_, literal) in pairs if literal and not is_value(p.default, literal[0])]
    return [f"{name}: {parameter.name}={parameter.default}" for parameter in wrong]


def is_value(default, value):
    """Whether a default's source stands for a value; a name or a call may stand for any."""
    try:
        return ast.literal_eval(default) == value
    except ValueError:
        return True


def with_members(name, there):
    yield name, there
    for member, described in there["members"].items():
        yield from with_members(f"{name}.{member}", described)


@needs_covered_torch
def test_all_that_the_history_knows_is_in_the_installed_torch(history, installed):
    assert [d for name, there in installed["asked"].items() for d in differences(history, name, there)] == []


@needs_covered_torch
def test_all_that_the_installed_torch_offers_is_in_the_history(history, installed):
    assert installed["failed"] == {}
    offered = [
        pair
        for module, names in installed["public"].items()
        for name, there in names.items()
        for pair in with_members(f"{module}.{name}", there)
    ]
    assert [d for name, there in offered for d in differences(history, name, there)] == []
    assert [m for m in installed["public"] if history.fact_in(m, installed_version()) is None] == []


def test_the_installed_torch_offers_no_fewer_names_than_the_check_was_written_for(installed):
    assert len(installed["asked"]) > 1800
    assert sum(len(names) for names in installed["public"].values()) > 900


# Reading a wheel.

SOURCES = {
    "torch/__init__.py": "from torch.amp import autocast\n",
    "torch/amp/__init__.py": """
        __all__ = ["autocast"]
        class autocast:
            def __init__(self, device_type, dtype=None): pass
    """,
    "torch/distributed/__init__.py": """
        import logging
        import torch
        from torch._C._distributed_c10d import Store
        from .c10d import *
        from .mesh import Mesh
        log = logging.getLogger(__name__)
        DistError = torch._C._DistError
    """,
    "torch/distributed/c10d.py": """
        from typing import TYPE_CHECKING
        __all__ = ["all_reduce", "old_reduce", "group"]
        __all__ += ["Backend"]
        if TYPE_CHECKING:
            from elsewhere import Hidden
        def all_reduce(tensor, op="sum", *, group=None): pass
        @deprecated("Please use `torch.distributed.all_reduce` instead.", category=FutureWarning)
        def old_reduce(tensor): pass
        group = object()
        class Backend(str):
            GLOO = "gloo"
            def register(cls, name): pass
            register = classmethod(register)
        def _private(): pass
    """,
    "torch/distributed/mesh.py": """
        import dataclasses
        import enum
        import functools
        import warnings
        from typing import NamedTuple
        from torch.other import Outside
        class Inside(Outside):
            def there(self): pass
        def keeps(function):
            @functools.wraps(function)
            def wrapper(*args, **kwargs): return function(*args, **kwargs)
            return wrapper
        def hides(function): return lambda *anything: None
        def _warn_old(name, new):
            warnings.warn(f"{name} is deprecated, use {new} instead", FutureWarning)
        class _Base:
            def inherited(self, a, /, b=1): pass
        class Mesh(_Base):
            size: int
            @keeps
            def kept(self, x): pass
            @hides
            def hidden(self, x): pass
            @property
            def shape(self): pass
            @staticmethod
            def of(x): pass
            def old(self, y=None, z=0):
                if y is not None:
                    warnings.warn("`y` is deprecated, use `z` instead", FutureWarning)
            def older(self):
                _warn_old("older", "Mesh.old")
            def _private(self): pass
        class SubMesh(Mesh):
            def kept(self, x, more): pass
        @dataclasses.dataclass
        class Options:
            size: int
            names: list = dataclasses.field(default_factory=list)
            secret: int = dataclasses.field(default=0, init=False)
            _: dataclasses.KW_ONLY
            last: bool = False
        class Color(enum.Enum):
            RED = 1
        class Pair(NamedTuple):
            first: int
            second: int = 2
        def documented(x, y=None):
            \"\"\"Something.

            Args:
                y: a thing

                    .. deprecated:: 2.5
                        Use ``x`` instead.
            \"\"\"
    """,
    "torch/distributed/_tensor/__init__.py": """
        import sys
        from importlib import import_module
        names = ["mesh"]
        for name in names:
            full = f"torch.distributed.{name}"
            sys.modules[f"torch.distributed._tensor.{name}"] = import_module(full)
        from torch.distributed.mesh import Mesh
    """,
    "torch/other.py": """
        def not_read(): pass
        class Outside:
            def there(self): pass
    """,
}

FACTS = {
    "torch.amp": Fact("module"),
    "torch.amp.autocast": Fact("class", "device_type, dtype=None"),
    "torch.autocast": Fact("alias", target="torch.amp.autocast"),
    "torch.distributed": Fact("module"),
    "torch.distributed.Backend": Fact("class", target="torch.distributed.c10d.Backend"),
    "torch.distributed.Backend.GLOO": Fact("attribute"),
    "torch.distributed.Backend.register": Fact("attribute"),
    "torch.distributed.DistError": Fact("unknown", target="torch._C._DistError"),
    "torch.distributed.Mesh": Fact("class", "", "torch.distributed.mesh.Mesh"),
    "torch.distributed.Mesh.hidden": Fact("method"),
    "torch.distributed.Mesh.inherited": Fact("method", "a, /, b=1"),
    "torch.distributed.Mesh.kept": Fact("method", "x"),
    "torch.distributed.Mesh.of": Fact("method", "x"),
    "torch.distributed.Mesh.old": Fact("method", "y=None, z=0", deprecated_parameters=(("y", "z"),)),
    "torch.distributed.Mesh.older": Fact("method", "", deprecated="torch.distributed.Mesh.old"),
    "torch.distributed.Mesh.shape": Fact("property"),
    "torch.distributed.Mesh.size": Fact("attribute"),
    "torch.distributed.Store": Fact("unknown", target="torch._C._distributed_c10d.Store"),
    "torch.distributed._tensor": Fact("module"),
    "torch.distributed._tensor.Mesh": Fact("alias", target="torch.distributed.Mesh"),
    "torch.distributed._tensor.mesh": Fact("alias", target="torch.distributed.mesh"),
    "torch.distributed.all_reduce": Fact(
        "function", "tensor, op='sum', *, group=None", "torch.distributed.c10d.all_reduce"
    ),
    "torch.distributed.c10d": Fact("module"),
    "torch.distributed.c10d.Backend": Fact("alias", target="torch.distributed.Backend"),
    "torch.distributed.c10d.all_reduce": Fact("alias", target="torch.distributed.all_reduce"),
    "torch.distributed.c10d.group": Fact("alias", target="torch.distributed.group"),
    "torch.distributed.c10d.old_reduce": Fact("alias", target="torch.distributed.old_reduce"),
    "torch.distributed.group": Fact("value", target="torch.distributed.c10d.group"),
    "torch.distributed.mesh": Fact("module"),
    "torch.distributed.mesh.Color": Fact("class", "value"),
    "torch.distributed.mesh.Color.RED": Fact("attribute"),
    "torch.distributed.mesh.Inside": Fact("class", ""),
    "torch.distributed.mesh.Inside.there": Fact("method", ""),
    "torch.distributed.mesh.Mesh": Fact("alias", target="torch.distributed.Mesh"),
    "torch.distributed.mesh.Options": Fact("class", "size, names=list(), *, last=False"),
    "torch.distributed.mesh.Options.last": Fact("attribute"),
    "torch.distributed.mesh.Options.names": Fact("attribute"),
    "torch.distributed.mesh.Options.secret": Fact("attribute"),
    "torch.distributed.mesh.Options.size": Fact("attribute"),
    "torch.distributed.mesh.Pair": Fact("class", "first, second=2"),
    "torch.distributed.mesh.Pair.first": Fact("attribute"),
    "torch.distributed.mesh.Pair.second": Fact("attribute"),
    "torch.distributed.mesh.SubMesh": Fact("class", "", bases=("torch.distributed.Mesh",)),
    "torch.distributed.mesh.SubMesh.kept": Fact("method", "x, more"),
    "torch.distributed.mesh.documented": Fact("function", "x, y=None", deprecated_parameters=(("y", "x"),)),
    "torch.distributed.mesh.hides": Fact("function", "function"),
    "torch.distributed.mesh.keeps": Fact("function", "function"),
    "torch.distributed.old_reduce": Fact(
        "function", "tensor", "torch.distributed.c10d.old_reduce", deprecated="torch.distributed.all_reduce"
    ),
}


def make_wheel(path, number, sources):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(
            f"torch-{number}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {number}\n"
        )
        archive.writestr(f"torch-{number}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: false\n")
        for name, source in sources.items():
            archive.writestr(name, dedent(source))
    return path


def test_a_wheel_becomes_a_fact_for_each_public_name(tmp_path):
    steps = []
    wheel = make_wheel(tmp_path / "torch.whl", "2.4.1+cpu", SOURCES)
    snapshot = read_wheel(wheel, progress=lambda *step: steps.append(step))
    assert snapshot.version == "2.4.1"
    assert snapshot.facts == FACTS
    assert steps == [("reading", done, 6) for done in range(1, 7)]


def test_reading_executes_nothing(tmp_path):
    mark = tmp_path / "executed"
    sources = {"torch/distributed/__init__.py": f"open({str(mark)!r}, 'w')\ndef f(): pass\n"}
    assert set(read_wheel(make_wheel(tmp_path / "torch.whl", "2.4.1", sources)).facts) == {
        "torch.distributed",
        "torch.distributed.f",
    }
    assert not mark.exists()


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda wheel: wheel.unlink(), "cannot be read (No such file or directory)"),
        (lambda wheel: wheel.write_bytes(wheel.read_bytes()[:-30]), "is a damaged wheel"),
        (lambda wheel: wheel.write_text("<html>not found</html>"), "is a damaged wheel"),
        (
            lambda wheel: wheel.write_bytes(wheel.read_bytes().replace(b"def f", b"dex f")),
            "is a damaged wheel",
        ),
        (lambda wheel: zipfile.ZipFile(wheel, "w").close(), "is not a wheel of torch"),
    ],
)
def test_a_bad_wheel_is_named(tmp_path, damage, problem):
    wheel = make_wheel(tmp_path / "torch.whl", "2.4.1", {})
    with zipfile.ZipFile(wheel, "a", zipfile.ZIP_STORED) as archive:
        archive.writestr("torch/distributed/__init__.py", "def f(): pass")
    damage(wheel)
    with pytest.raises(HistoryError) as caught:
        read_wheel(wheel)
    assert (caught.value.where, caught.value.problem) == (str(wheel), problem)


def test_a_source_that_this_python_cannot_parse_is_named(tmp_path):
    wheel = make_wheel(tmp_path / "torch.whl", "2.4.1", {"torch/distributed/__init__.py": "def f(:"})
    with pytest.raises(HistoryError, match=r"torch\.distributed is not Python as Python 3\.\d+ knows it"):
        read_wheel(wheel)


def test_a_wheel_of_another_release_is_refused(tmp_path):
    wheel = make_wheel(tmp_path / "torch.whl", "2.4.1", SOURCES)
    with pytest.raises(HistoryError, match=r"holds torch 2\.4\.1, not 2\.5"):
        read_release("2.5", wheel=wheel)
    assert read_release("2.4", wheel=wheel) == read_release("2.4.1", wheel=wheel)


@pytest.mark.parametrize("word", ["two", "2", "2.7.1.post1", ""])
def test_what_is_no_release_is_refused_before_anything_is_fetched(word):
    with pytest.raises(HistoryError, match="is not a release of torch"):
        read_release(word)


# Downloading, from a package index on this machine.


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A package index with two releases; gives the requests that it answered."""
    folder = tmp_path / "index"
    simple = folder / "simple" / "torch"
    simple.mkdir(parents=True)
    names = [f"torch-{number}-cp312-none-macosx_11_0_arm64.whl" for number in ("2.4.0", "2.4.1", "2.5.0")]
    for name in names:
        make_wheel(simple / name, name.split("-")[1], SOURCES)
    (simple / "index.html").write_text("".join(f'<a href="{name}">{name}</a>' for name in names))
    with serve(folder) as url:
        use_index(monkeypatch, f"{url}simple")
        yield


def use_index(monkeypatch, url):
    for name in [name for name in os.environ if name.startswith("PIP_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", url)
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")


@pytest.mark.parametrize(("asked", "given"), [("2.4.0", "2.4.0"), ("2.4", "2.4.1"), ("newest", "2.5.0")])
def test_pip_fetches_the_release(index, asked, given):
    steps = []
    snapshot = read_release(asked, progress=lambda *step: steps.append(step))
    assert (snapshot.version, snapshot.facts) == (given, FACTS)
    assert steps[:3] == [("downloading", 0, 1), ("downloading", 1, 1), ("reading", 1, 6)]


def test_a_release_that_does_not_exist_is_named_with_those_that_do(index):
    with pytest.raises(HistoryError) as caught:
        read_release("2.6")
    assert str(caught.value) == (
        "torch==2.6.*: is not a release that the package index offers; the newest are 2.4.0, 2.4.1, 2.5.0"
    )


def test_a_release_that_pip_is_told_not_to_take_is_said(index, monkeypatch, tmp_path):
    (tmp_path / "constraints.txt").write_text("torch<2.5\n")
    monkeypatch.setenv("PIP_CONSTRAINT", str(tmp_path / "constraints.txt"))
    assert read_release("newest").version == "2.4.1"
    with pytest.raises(HistoryError, match="is no release, or is excluded by pip's constraints"):
        read_release("2.5")


def test_a_package_index_that_does_not_answer_is_said(monkeypatch):
    use_index(monkeypatch, "http://127.0.0.1:9/simple")
    with pytest.raises(HistoryError, match="the package index does not answer, or offers no torch"):
        read_release("2.4")


def test_a_python_without_pip_is_said(monkeypatch, tmp_path):
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare))
    with pytest.raises(HistoryError, match="has no pip"):
        read_release("2.4")


# Adding to the history, asking it, and its file.

LATER = SOURCES | {
    "torch/distributed/c10d.py": """
        from torch.distributed.mesh import Backend
        __all__ = ["all_reduce", "group"]
        def all_reduce(tensor, op="mean", *, group=None, more, **kwargs): pass
        group = object()
    """,
    "torch/distributed/mesh.py": """
        import torch
        from torch.other import Outside
        class Inside(Outside): pass
        class Mesh(torch._C._distributed_c10d.Mesh): pass
        class Backend(str): pass
    """,
}


@pytest.fixture
def two_releases(tmp_path):
    first = add_release(History(()), "2.4.1", wheel=make_wheel(tmp_path / "1.whl", "2.4.1", SOURCES))
    return add_release(first, "2.10.0", wheel=make_wheel(tmp_path / "2.whl", "2.10.0", LATER))


def test_a_later_patch_release_takes_the_place_of_an_earlier_one(tmp_path, two_releases):
    again = add_release(two_releases, "2.10.1", wheel=make_wheel(tmp_path / "3.whl", "2.10.1", LATER))
    assert again.versions == ("2.4.1", "2.10.1")
    assert again.releases == ("2.4", "2.10")
    assert two_releases.versions == ("2.4.1", "2.10.0")


def test_an_object_shows_its_past(two_releases):
    found = two_releases.object("torch.distributed.all_reduce")
    assert (found.kind, found.releases, found.since, found.until, found.removed) == (
        "function",
        ("2.4", "2.10"),
        None,
        None,
        None,
    )
    assert list(found.parameters) == ["tensor", "op", "group", "more", "kwargs"]
    assert found.parameters["op"].defaults == (Change("2.4", "'sum'"), Change("2.10", "'mean'"))
    assert found.parameters["more"].since == "2.10"
    assert found.parameters["more"].kinds == (Change("2.10", "KEYWORD_ONLY"),)
    gone = two_releases.object("torch.distributed.old_reduce")
    assert (gone.since, gone.until, gone.removed) == (None, "2.4", "2.10")
    assert gone.deprecated == Deprecation(None, "torch.distributed.all_reduce")


def test_every_path_leads_to_the_object(two_releases):
    for path in (
        "torch.distributed.Mesh",
        "torch.distributed.mesh.Mesh",
        "torch.distributed._tensor.mesh.Mesh",
    ):
        assert two_releases.object(path).name == "torch.distributed.Mesh"
    assert two_releases.object("torch.distributed.mesh.SubMesh.of").name == "torch.distributed.Mesh.of"
    assert two_releases.object("torch.distributed.nothing") is None
    assert two_releases.object("os.path") is None


def test_what_is_bound_in_cpp_later_is_not_called_removed(two_releases):
    found = two_releases.object("torch.distributed.Mesh.kept")
    assert (found.releases, found.until) == (("2.4",), None)
    assert not two_releases.missing_in("torch.distributed.Mesh.kept", "2.10")


def test_what_a_module_still_imports_is_not_called_removed(two_releases):
    assert not two_releases.missing_in("torch.distributed.c10d.Backend", "2.10")
    assert two_releases.missing_in("torch.distributed.Backend", "2.10")


def test_what_a_class_inherits_from_elsewhere_is_not_called_removed(two_releases):
    assert not two_releases.missing_in("torch.distributed.mesh.Inside.there", "2.10")


def test_a_version_is_asked_what_it_lacks(two_releases):
    assert two_releases.missing_in("torch.distributed.old_reduce", "2.10.0+cu128")
    assert not two_releases.missing_in("torch.distributed.old_reduce", "2.4")
    assert not two_releases.missing_in("torch.distributed.nothing", "2.4")
    assert two_releases.parameter_missing_in("torch.distributed.all_reduce", "more", "2.4.0")
    assert not two_releases.parameter_missing_in("torch.distributed.all_reduce", "more", "2.10")
    assert not two_releases.parameter_missing_in("torch.distributed.all_reduce", "nothing", "2.4")
    assert two_releases.names_in("2.4") == tuple(sorted(n for n, f in FACTS.items() if f.kind != "alias"))
    assert two_releases.unknown_in("2.10") == (
        "torch.distributed.DistError",
        "torch.distributed.Mesh",
        "torch.distributed.Store",
        "torch.distributed.group",
        "torch.distributed.mesh.Backend",
        "torch.distributed.mesh.Inside.there",
    )


@pytest.mark.parametrize(
    ("asked", "given"),
    [("2.4", "2.4.1"), ("2.9.1", "2.4.1"), ("2.10.0a0+git123", "2.10.0"), ("2.11", "2.10.0")],
)
def test_any_version_belongs_to_a_covered_release(two_releases, asked, given):
    assert two_releases.snapshot_for(asked).version == given


@pytest.mark.parametrize("asked", ["2.3.1", "1.13", "new", "2"])
def test_a_version_that_is_not_covered_is_refused(two_releases, asked):
    with pytest.raises(HistoryError):
        two_releases.names_in(asked)


def test_a_release_lists_its_changes(two_releases):
    changes = two_releases.changes_in("2.10")
    assert changes.added == ("torch.distributed.mesh.Backend",)
    assert "torch.distributed.old_reduce" in changes.removed
    assert changes.added_parameters == (
        ("torch.distributed.all_reduce", "more"),
        ("torch.distributed.all_reduce", "kwargs"),
    )
    assert changes.changed_defaults == (("torch.distributed.all_reduce", "op", "'sum'", "'mean'"),)
    first = two_releases.changes_in("2.4")
    assert (first.added, first.removed, first.added_parameters) == ((), (), ())


def test_a_history_comes_back_from_its_file(tmp_path, two_releases):
    path = tmp_path / "history.json"
    save_history(two_releases, path)
    assert load_history(path) == two_releases
    assert path.read_text() == encode(two_releases)
    assert [file.name for file in tmp_path.iterdir() if file.suffix == ".json" or file.name.startswith(".")] == [
        path.name
    ]


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path, two_releases):
    folder = tmp_path / "history.json"
    folder.mkdir()
    (folder / "kept").touch()
    with pytest.raises(HistoryError, match="cannot be written"):
        save_history(two_releases, folder)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["1.whl", "2.whl", "history.json"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:100],
        lambda text: "[]",
        lambda text: text.replace('"format": 1', '"format": 2'),
        lambda text: text.replace('"module"', '"modul"'),
        lambda text: text.replace('"2.4": ', '"2.3": ').replace('"2.4":', '"2.3":'),
        lambda text: text.replace('"releases"', '"release"'),
    ],
)
def test_a_damaged_file_is_named(tmp_path, two_releases, damage):
    path = tmp_path / "history.json"
    path.write_text(damage(encode(two_releases)))
    with pytest.raises(HistoryError) as caught:
        load_history(path)
    assert str(caught.value) == (
        f"{path}: is not a history that this version of the builder can read; restore it from the repository"
    )


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(HistoryError, match="cannot be read"):
        load_history(tmp_path / "none.json")


def test_the_committed_file_is_compact_and_what_saving_it_would_give(history):
    text = HISTORY_FILE.read_text(encoding="utf-8")
    assert text == encode(history)
    assert len(text) < 400_000
    assert history.releases[0] == "2.4"


def test_the_guide_to_versions_has_the_tables_of_the_history(history):
    guide = sources() / "references" / "guide-versions.md"
    assert guide.read_text(encoding="utf-8") == with_tables(guide.read_text(encoding="utf-8"), history)


def test_a_guide_without_the_tables_heading_is_refused(history):
    with pytest.raises(ValueError, match="no line '## What each release brought'"):
        with_tables("# Versions\n", history)

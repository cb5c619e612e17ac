"""check_node.py alone and as ranks with gloo: sound, slow, dead, unlike each other, and on torch's recordings."""

import ctypes
import importlib.util
import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.scripts.conftest import ENVIRONMENT, SCRIPTS, free_port, in_terminal, uncoloured

SCRIPT = SCRIPTS / "check_node.py"
FOREIGN = ("NCCL_", "GLOO_", "TORCH_", "CUDA_")
CLEAN = {name: value for name, value in ENVIRONMENT.items() if not name.startswith(FOREIGN)}
WRAPPER = f"""
import importlib.util, os, resource, sys, time
import torch
spec = importlib.util.spec_from_file_location("check_node", {str(SCRIPT)!r})
check = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check)
rank = int(os.environ.get("RANK", 0))
exec(sys.argv.pop(1))
code = check.main()
sys.stdout.flush()
os._exit(code)
"""


def load():
    spec = importlib.util.spec_from_file_location("check_node", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


check_node = load()


def check(*arguments, ranks=1, fault="pass", environment=None, start=(sys.executable,)):
    """Run the ranks with a fault in each; exit codes and outputs, rank 0's first."""
    shared = {**CLEAN, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": ranks}
    shared |= {"LOCAL_WORLD_SIZE": ranks, **(environment or {})}
    children = []
    for rank in range(ranks):
        place = {"RANK": rank, "LOCAL_RANK": rank} | shared if ranks > 1 else {**CLEAN, **(environment or {})}
        command = [*start, "-c", WRAPPER, fault, "--timeout", "60", *map(str, arguments)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        children.append(subprocess.Popen(command, env={k: str(v) for k, v in place.items()}, **pipes))
    outputs = [child.communicate(timeout=200) for child in children]
    return [child.returncode for child in children], outputs


def report_of(*arguments, **settings):
    """Exit codes and rank 0's report."""
    codes, outputs = check("--json", *arguments, **settings)
    return codes, json.loads(outputs[0][0])


def lines(report, level="problem"):
    return [(row["check"], row["what"]) for row in report if row["level"] == level]


@pytest.mark.parametrize("ranks", [1, 2])
def test_healthy_ranks_are_called_healthy(ranks, tmp_path):
    fault = "check.SLOW = 1e9"  # what else runs on this machine is no matter
    codes, report = report_of("--checkpoint-dir", tmp_path, "--need", "0", ranks=ranks, fault=fault)
    assert (codes, lines(report), lines(report, "unknown")) == ([0] * ranks, [], [])
    assert ("disk", "rename is atomic") in lines(report, "ok")
    assert list(tmp_path.iterdir()) == []
    (note,) = [row for row in report if row["check"] == "gpus"]
    assert f"'torch': '{torch.__version__}'" in note["what"]
    assert note["ranks"] == [*range(ranks)]
    measured = [what.split(" bytes: ")[0] for check, what in lines(report, "ok") if check == "collectives"]
    names = ("all_gather", "reduce_scatter", "all_reduce")
    assert measured == [f"{name} {size}" for size in check_node.SIZES for name in names]


def test_bus_bandwidth_is_that_of_nccl_tests():
    # doc/PERFORMANCE.md: S/t * 2(n-1)/n for all-reduce, S/t * (n-1)/n for the others
    speeds = [check_node.bus_bandwidth(name, 8e9, 2.0, 4) for name in ("all_reduce", "all_gather", "reduce_scatter")]
    assert speeds == [6.0, 3.0, 3.0]


def test_slow_rank_is_named():
    fault = "burst = check.burst; check.burst = lambda: burst() + 9 * (rank == 2)"
    codes, report = report_of(ranks=3, fault=fault)
    assert codes == [1] * 3
    assert [what.split(": ")[0] for _, what in lines(report) if "work" in what] == ["work of rank 2"]


def test_slow_link_is_named():
    fault = """
if rank == 3:
    exchange = torch.distributed.batch_isend_irecv
    def delayed(ops):
        time.sleep(0.5 * (ops[0].peer == 1))
        return exchange(ops)
    torch.distributed.batch_isend_irecv = delayed
"""
    codes, report = report_of(ranks=4, fault=fault)
    assert codes == [1] * 4
    assert "link of rank 1 - 3" in [what.split(": ")[0] for _, what in lines(report)]


def test_wrong_result_is_named():
    fault = """
if rank == 1:
    reduce = torch.distributed.all_reduce
    def corrupt(tensor):
        reduce(tensor)
        tensor[5] += 1
    torch.distributed.all_reduce = corrupt
"""
    codes, report = report_of(ranks=2, fault=fault)
    assert codes == [1, 1]
    wrong = [(row["what"], row["ranks"]) for row in report if row["level"] == "problem"]
    assert wrong == [("all_reduce gives wrong values", [1, 1, 1])]


@pytest.mark.parametrize(("step", "stage"), [("look", "start"), ("sweep", "collectives")])
def test_rank_that_dies_is_named_by_the_others(step, stage):
    fault = f"if rank == 1: check.{step} = lambda *_: os._exit(9)"
    codes, report = report_of("--timeout", 8, ranks=3, fault=fault)
    assert codes == [1, 9, 1]
    dead = [row["ranks"] for row in report if row["what"] == "died, hung or never came"]
    assert dead == [[1]]
    assert (stage, "died, hung or never came") in lines(report)


def test_collectives_that_hang_end_in_a_message():
    codes, report = report_of("--timeout", 5, ranks=2, fault="if rank: check.measure = lambda me: time.sleep(600)")
    assert codes == [1, 1]
    assert ("collectives", "no end after 5.0 s") in lines(report)


def test_rank_zero_that_dies_ends_in_a_message():
    codes, outputs = check("--timeout", 10, ranks=2, fault="if rank == 0: check.sweep = lambda *_: os._exit(9)")
    assert codes == [9, 1]
    assert "problem rendezvous" in outputs[1][0]


def test_torchrun_lets_the_others_report_a_dead_rank():
    faulty = "die = lambda me, *_: me.store.wait(['check_node start 0']) or os._exit(9)\nif rank: check.gather = die"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python"]
    command += [sys.executable, "-c", WRAPPER, faulty, "--timeout", "6"]
    done = subprocess.run(command, env=CLEAN, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "died, hung or never came" in done.stdout


def test_unreachable_rendezvous_ends_in_a_message():
    place = {"RANK": 1, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}
    (code,), report = report_of("--timeout", 2, environment=place)
    assert code == 1
    ((check, what),) = lines(report)
    assert check == "rendezvous"
    assert "127.0.0.1" in what


def test_versions_settings_and_clocks_that_differ_are_named():
    fault = """
if rank == 1:
    torch.__version__ = "1.0"
    os.environ["NCCL_NET"] = "Socket"
    now = time.time
    time.time = lambda: now() + 3600
"""
    codes, report = report_of(ranks=2, fault=fault)
    assert codes == [1, 1]
    assert lines(report) == [
        ("agreement", "NCCL_NET by ranks: {None: [0], 'Socket': [1]}"),
        ("agreement", f"torch by ranks: {{'{torch.__version__}': [0], '1.0': [1]}}"),
        ("clock", "3600 s from rank 0's"),
    ]


def test_interface_that_is_not_there_is_named_and_nothing_hangs():
    fault = "if rank == 1: os.environ |= {'GLOO_SOCKET_IFNAME': 'nosuch0', 'NCCL_SOCKET_IFNAME': 'nosuch1'}"
    codes, report = report_of(ranks=2, fault=fault)
    assert codes == [1, 1]
    assert lines(report) == [
        ("network", "NCCL_SOCKET_IFNAME=nosuch1 means []"),
        ("network", "GLOO_SOCKET_IFNAME=nosuch0 means []"),
    ]


@pytest.mark.parametrize(
    ("value", "bad"), [("lo", False), ("=lo", False), ("l", False), ("^lo", False), ("^", True), ("=l", True)]
)
def test_interfaces_are_chosen_as_nccl_does(value, bad, monkeypatch):
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", value)
    monkeypatch.setattr(check_node.socket, "if_nameindex", lambda: [(1, "lo"), (2, "eth0")])
    me = SimpleNamespace(multi=False, blocked=False)
    assert [line[0] for line in check_node.network(me) if "IFNAME" in line[1]] == [bad]


def test_loopback_between_nodes_is_a_problem(monkeypatch):
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(check_node.socket, "gethostname", lambda: "localhost")
    me = SimpleNamespace(multi=True, blocked=False)
    bad = [what for is_bad, what, _ in check_node.network(me) if is_bad]
    assert bad == ["NCCL_SOCKET_IFNAME=lo means ['lo']", "localhost resolves to 127.0.0.1"]


def test_variables_are_explained_and_judged():
    settings = {
        "NCCL_IB_HCA": "mlx5",
        "NCCL_DEBUG": "INFO",
        "NCCL_P2P_DISABLE": "1",
        "NCCL_P2P_LEVEL": "NVL",
        "NCCL_ASYNC_ERROR_HANDLING": "1",
        "NCCL_SOKET_IFNAME": "eth0",
        "NCCL_IFNAME": "eth0",
        "TORCH_NCCL_BLOCKNIG_WAIT": "1",
        "NCCL_TREE_THRESHOLD": "0",
    }
    (code,), report = report_of(environment=settings)
    assert code == 1
    assert sorted(what for check, what in lines(report) if check == "variables") == [
        "NCCL_ASYNC_ERROR_HANDLING is old or misspelt",
        "NCCL_IFNAME is old or misspelt",
        "NCCL_P2P_DISABLE=1: copies through the host",
        "NCCL_SOKET_IFNAME is old or misspelt",
        "NCCL_TREE_THRESHOLD=0: old, use NCCL_ALGO",
        "TORCH_NCCL_BLOCKNIG_WAIT is old or misspelt",
    ]
    assert sorted(what for check, what in lines(report, "note") if check == "variables") == [
        "NCCL_DEBUG=INFO: log",
        "NCCL_IB_HCA=mlx5: adapters",
        "NCCL_P2P_LEVEL=NVL: how far GPUs copy",
    ]


def test_torch_still_reads_its_variables():
    names = [line.split()[0].split("=")[0] for line in check_node.VARIABLES.split("\n") if line.startswith("TORCH_")]
    headers = (Path(torch.__file__).parent / "include/torch/csrc/distributed/c10d").glob("*.hpp")
    libraries = (Path(torch.__file__).parent / "lib" / f"libtorch_{part}.so" for part in ("cpu", "python"))
    read = b"".join(path.read_bytes() for path in [*headers, *libraries])
    assert [name for name in names if name.encode() not in read] == []


def test_file_system_that_takes_no_more_is_a_problem(tmp_path):
    fault = "resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))"
    (code,), report = report_of("--checkpoint-dir", tmp_path / "new", "--need", 0, fault=fault)
    assert code == 1
    assert lines(report) == [("disk", f"cannot write in {tmp_path}: File too large")]


def test_full_disk_is_a_problem(tmp_path):
    mount = ["unshare", "-rm", "sh", "-c", f'mount -t tmpfs -o size=64k tmpfs {tmp_path} && exec "$@"', "sh"]
    if subprocess.run([*mount, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no right to mount")
    (code,), report = report_of("--checkpoint-dir", tmp_path, "--need", 1, start=[*mount, sys.executable])
    assert code == 1
    full = ("disk", f"cannot write in {tmp_path}: No space left on device")
    assert lines(report) == [("disk", f"0.00 GiB free in {tmp_path}"), full]


def test_low_limits_are_problems():
    (code,), report = report_of(fault="resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))")
    assert (code, lines(report)) == (1, [("limits", "512 open files")])


def bare(*arguments):
    """Run it on a Python that has no torch."""
    command = [sys.executable, "-I", "-S", SCRIPT, *arguments]
    return subprocess.run(command, env=CLEAN, capture_output=True, text=True, timeout=60, check=False)


def test_without_torch_it_cannot_tell():
    done = bare("--json")
    assert (done.returncode, done.stderr) == (3, "")
    (row,) = [row for row in json.loads(done.stdout) if row["level"] == "unknown"]
    assert (row["what"], row["remedy"]) == ("No module named 'torch'", "use the Python that trains")


def test_without_torch_it_helps_and_reads_recordings(tmp_path):
    assert bare("--help").returncode == 0
    dump(tmp_path, {0: [call(1)], 1: [], 2: [call(1)]})
    done = bare("--flight-recorder", tmp_path)
    assert done.returncode == 1
    assert "look first at rank [1]" in done.stdout


def test_a_terminal_gets_a_table_with_the_levels_in_colour():
    environment = {**CLEAN, "NCCL_IFNAME": "eth0", "NCCL_DEBUG": "INFO"}
    code, shown = in_terminal(sys.executable, SCRIPT, environment=environment)
    assert code == 1
    assert re.search(
        r"\x1b\[31mproblem\b.* variables .* NCCL_IFNAME is old or misspelt .* use NCCL_SOCKET_IFNAME ", shown
    )
    assert re.search(r"\x1b\[33mnote\b.* variables .* NCCL_DEBUG=INFO: log ", shown)
    assert re.search(r"\x1b\[32mok\b.* limits .* \[0\] .* \d+ open files ", shown)
    assert "│" in shown


SHOW = f"""
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("check_node", {str(SCRIPT)!r})
check = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check)
check.show(json.loads(sys.argv[1]))
"""


def test_a_narrow_terminal_gets_all_that_was_found():
    what = f"[red]/{'very' * 30}/long:smile:"
    row = {"check": "recorder", "what": what, "remedy": "keep [only] dumps there", "level": "unknown", "ranks": [0, 11]}
    _, shown = in_terminal(sys.executable, "-I", "-c", SHOW, json.dumps([row, row]), columns=70)
    drawn = [line.split("│")[1:-1] for line in uncoloured(shown).splitlines() if line.startswith("│")]
    assert max(map(len, uncoloured(shown).splitlines())) <= 70
    level, check, ranks, found, remedy = ("".join("".join(column).split()) for column in zip(*drawn, strict=True))
    assert (level, check, ranks) == ("unknown" * 2, "recorder" * 2, "[0,11]" * 2)
    assert (found, remedy) == (what * 2, "keep[only]dumpsthere" * 2)


def test_a_terminal_without_rich_gets_the_lines():
    code, shown = in_terminal(sys.executable, "-I", "-S", SCRIPT, environment=CLEAN)
    done = bare()
    assert (code, shown) == (3, done.stdout)
    assert shown.startswith("unknown gpus        [0]       No module named 'torch'  use the Python that trains\n")


def test_what_is_piped_is_lines_without_colours_and_rich():
    row = {"check": "disk", "what": "rename is atomic", "remedy": "", "level": "ok", "ranks": [0]}
    command = [sys.executable, "-I", "-c", f"{SHOW}print('rich' in sys.modules)", json.dumps([row])]
    environment = {**CLEAN, "FORCE_COLOR": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == "ok      disk        [0]       rename is atomic  \nFalse\n"


@pytest.mark.parametrize("arguments", [["--no"], ["--timeout", "x"]])
def test_wrong_usage_exits_with_two(arguments):
    done = subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "usage: " in done.stderr


def test_gpu_that_nvml_complains_of_is_a_problem(monkeypatch):
    answers = {
        ("CurrPcieLinkWidth",): 8, ("MaxPcieLinkWidth",): 16, ("ClockInfo", 1): 210, ("MaxClockInfo", 1): 1980,
        ("CurrentClocksThrottleReasons",): 0x40, ("TotalEccErrors", 1, 0): 3,
        **{("NvLinkState", link): int(link < 3) for link in range(4)},
    }  # fmt: skip

    class Library:
        def nvmlInit_v2(self):
            return 0

        def nvmlDeviceGetHandleByUUID(self, uuid, handle):
            handle._obj.value = int(uuid.removeprefix(b"GPU-"))
            return 0

        def __getattr__(self, name):
            def get(handle, *more):
                if name == "nvmlDeviceGetTopologyCommonAncestor":
                    more[-1]._obj.value = 10 * (handle.value + more[0].value)
                    return 0
                value = answers.get((name.removeprefix("nvmlDeviceGet"), *more[:-1]))
                more[-1]._obj.value = value or 0
                return 3 if value is None else 0  # 3: not supported

            return get

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library())
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda i: SimpleNamespace(uuid=str(i + 1)))
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda i, j: True)
    bad, what, _ = check_node.nvml(0, 2)
    assert bad is True
    assert what == ("GPU 0: 210 of 1980 MHz, throttle=64 ecc=3 PCIe 8 of 16, NVLinks 3 up 1 down, ways={1: (30, True)}")
    answers.clear()
    assert check_node.nvml(0, 1)[0] is False  # a GPU that tells nothing


# ---- flight recorder ----


def call(number, name="nccl:all_reduce", size=4, state="completed", **more):
    sizes = {"input_sizes": [[size]], "output_sizes": [[size]], "input_dtypes": ["Float"]}
    group = {"process_group": ("0", "default_pg"), "collective_seq_id": number, "is_p2p": False}
    return {"profiling_name": name, "state": state, "retired": True, **sizes, **group, **more}


def dump(folder, calls, *, ranks=None, form=pickle):
    """Write dumps of ranks that made these calls."""
    members = json.dumps([*range(len(calls))] if ranks is None else ranks)
    for rank, entries in calls.items():
        content = {"version": "2.10", "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": members}}}
        content |= {"entries": entries, "pg_status": {}}
        data = pickle.dumps(content, protocol=2) if form is pickle else json.dumps(content).encode()
        (folder / f"nccl_trace_rank_{rank}").write_bytes(data)


def recorded(folder):
    """What is said of the dumps, with its remedy."""
    return [*check_node.recorder(SimpleNamespace(rank=0, flight_recorder=str(folder)))]


ALIKE = [(False, "group 0 default_pg: all came alike", "")]
REDUCE = "nccl:all_reduce [[4]] to [[4]] ['Float']"


def test_recordings_that_agree_are_fine(tmp_path):
    dump(tmp_path, {rank: [call(1), call(2)] for rank in range(4)})
    assert recorded(tmp_path) == ALIKE


@pytest.mark.parametrize("form", [pickle, json])
def test_rank_that_never_came_is_named(tmp_path, form):
    started = call(3, state="started")
    dump(tmp_path, {rank: [call(1), call(2), *([started] * (rank != 2))] for rank in range(4)}, form=form)
    kinds = {f"{REDUCE} started": [0, 1, 3], "nothing": [2]}
    what = f"group 0 default_pg, collective 3 by ranks: {kinds}"
    assert recorded(tmp_path) == [(True, what, "look first at rank [2]")]


@pytest.mark.parametrize("change", [{"name": "nccl:broadcast"}, {"size": 5}, {"input_dtypes": ["Half"]}])
def test_rank_that_calls_otherwise_is_named(tmp_path, change):
    dump(tmp_path, {rank: [call(1), call(2, state="started", **(change if rank == 1 else {}))] for rank in range(3)})
    ((bad, what, remedy),) = recorded(tmp_path)
    assert (bad, remedy) == (True, "look first at rank [1]")
    assert f'"{REDUCE} started": [0, 2]' in what


def test_rank_whose_gpu_never_began_is_named(tmp_path):
    dump(tmp_path, {rank: [call(1, state="started" if rank else "scheduled")] for rank in range(3)})
    ((bad, what, remedy),) = recorded(tmp_path)
    assert (bad, remedy) == (True, "look first at rank [0]")
    assert f'"{REDUCE} scheduled": [0]' in what


def test_collective_that_no_rank_ended_is_named(tmp_path):
    dump(tmp_path, {rank: [call(1), call(2, state="started")] for rank in range(3)})
    what = f"group 0 default_pg, collective 2 by ranks: { {f'{REDUCE} started': [0, 1, 2]} }"
    assert [line[:2] for line in recorded(tmp_path)] == [(True, what)]


def test_rank_without_a_dump_is_named(tmp_path):
    dump(tmp_path, {rank: [call(1, state="started")] for rank in (0, 1, 3)}, ranks=[0, 1, 2, 3])
    assert [remedy for _, _, remedy in recorded(tmp_path)] == ["look first at rank [2]"]


def test_what_left_the_ring_buffer_of_one_rank_is_no_difference(tmp_path):
    dump(tmp_path, {0: [call(n) for n in range(1, 6)], 1: [call(n) for n in range(3, 6)]})
    assert recorded(tmp_path) == ALIKE


@pytest.mark.parametrize("name", ["nccl:all_to_all", "nccl:scatter", "nccl:all_gather_v"])
def test_sizes_of_uneven_collectives_may_differ(tmp_path, name):
    dump(tmp_path, {rank: [call(1, name=name, size=rank)] for rank in range(3)})
    assert recorded(tmp_path) == ALIKE


def test_point_to_point_is_left_out(tmp_path):
    dump(tmp_path, {0: [call(1), call(2, name="nccl:send 0->1", is_p2p=True)], 1: [call(1)]})
    assert recorded(tmp_path) == ALIKE


def test_pickle_that_would_run_code_is_refused(tmp_path):
    class Malice:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "owned"),)

    folder = tmp_path / "dumps"
    folder.mkdir()
    (folder / "rank_0").write_bytes(pickle.dumps({"entries": [Malice()]}))
    (code,), report = report_of("--flight-recorder", folder)
    assert code == 3
    ((_, what),) = lines(report, "unknown")
    assert "refused, it names posix.mkdir and could run code" in what
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("content", [b"", b"{", b"\x80\x02", b"{}", b"not a dump", pickle.dumps([1])])
def test_damaged_recording_is_named(tmp_path, content):
    (tmp_path / "rank_7").write_bytes(content)
    ((level, what, _),) = recorded(tmp_path)
    assert level == "unknown"
    assert "rank_7: " in what


def test_what_torch_itself_records_is_read(tmp_path):

    program = f"""
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
dist.all_reduce(torch.ones(4))
dist.broadcast(torch.ones(2), 0)
if rank == 0:
    work = dist.all_reduce(torch.ones(3), async_op=True)
time.sleep(3)  # gloo marks what ended a moment later
for kind in ("_dump_fr_trace", "_dump_fr_trace_json"):
    os.makedirs({str(tmp_path)!r} + "/" + kind, exist_ok=True)
    with open({str(tmp_path)!r} + f"/{{kind}}/trace_rank_{{rank}}", "wb") as file:
        file.write(getattr(torch._C._distributed_c10d, kind)())
os._exit(0)
"""
    shared = {**CLEAN, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    children = [subprocess.Popen([sys.executable, "-c", program], env={**shared, "RANK": str(r)}) for r in (0, 1)]
    assert [child.wait(timeout=100) for child in children] == [0, 0]
    for folder in (tmp_path / "_dump_fr_trace", tmp_path / "_dump_fr_trace_json"):
        ((bad, what, _),) = recorded(folder)
        assert bad is True
        assert "collective 3 by ranks: " in what
        assert "gloo:all_reduce [[3]] to [[3]] ['Float'] " in what
        assert "'nothing': [1]" in what

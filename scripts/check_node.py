#!/usr/bin/env python3
"""Is this machine, or under torchrun each rank, fit for distributed training?

Exit: 0 healthy, 1 problems, 2 wrong usage, 3 could not tell (torchrun makes 1 of them, --json keeps them).
"""
# ruff: noqa: ANN, D103, BLE001 - whatever a check fails with belongs in the report

import argparse
import ctypes
import json
import os
import pickle
import re
import resource
import signal
import socket
import sys
import tempfile
import time
import warnings
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from statistics import mean, median_low
from threading import Thread

try:
    import torch
    import torch.distributed as dist
except (ImportError, OSError):
    torch = None

SLOW = (3, 1.3)  # times the median, on CPU and GPU
SIZES = ((2**16, 2**20, 2**23), (2**20, 2**25, 2**28))  # bytes, on CPU and GPU
LEVELS = {True: "problem", False: "ok", None: "note"}
# NAME[=HARMFUL] effect, or NAME>SUCCESSOR; from NCCL's user guide (env.html) and torch's ProcessGroupNCCL.hpp
VARIABLES = """\
NCCL_SOCKET_IFNAME interfaces
GLOO_SOCKET_IFNAME interfaces
NCCL_SOCKET_NTHREADS threads
NCCL_IB_HCA adapters
NCCL_IB_DISABLE=1 no InfiniBand
NCCL_IB_GID_INDEX RoCE address
NCCL_IB_TIMEOUT 4.096 us * 2^n
NCCL_NET plugin
NCCL_NET_GDR_LEVEL=0|LOC how far cards read GPU memory
NCCL_P2P_DISABLE=1 copies through the host
NCCL_P2P_LEVEL=0|LOC how far GPUs copy directly
NCCL_SHM_DISABLE=1 network for shared memory
NCCL_NVLS_ENABLE=0 NVLink switch reduces nothing
NCCL_ALGO=.+ forced
NCCL_PROTO=.+ forced, can corrupt data
NCCL_TOPO_FILE topology
NCCL_DEBUG=TRACE log level
TORCH_NCCL_ASYNC_ERROR_HANDLING=0 errors hang
TORCH_NCCL_BLOCKING_WAIT=1 CPU stops at waits
TORCH_NCCL_ENABLE_MONITORING=0 stuck watchdogs stay
TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC till they end
TORCH_NCCL_DESYNC_DEBUG=1 slow
TORCH_NCCL_DUMP_ON_TIMEOUT=0 no dump
TORCH_NCCL_TRACE_BUFFER_SIZE=0 entries of dumps
TORCH_FR_BUFFER_SIZE=0 entries of dumps
TORCH_FR_DUMP_TEMP_FILE dumps
TORCH_DISTRIBUTED_DEBUG=DETAIL slow
CUDA_LAUNCH_BLOCKING=1 no overlap
CUDA_DEVICE_MAX_CONNECTIONS=1 no overlap in FSDP2
NCCL_IB_CUDA_SUPPORT>NCCL_NET_GDR_LEVEL
NCCL_TREE_THRESHOLD>NCCL_ALGO
NCCL_LL_THRESHOLD>NCCL_PROTO"""

# A check yields whether something is bad (None: only a note), what it is, the remedy.


def versions(me):
    me.agree = {"python": sys.version.split()[0], "torch": torch.__version__, "cuda": torch.version.cuda}
    if me.cuda:
        me.agree["nccl"] = str(torch.cuda.nccl.version())
    yield False, str(me.agree), ""


def gpus(me):
    if not me.cuda:
        bad = Path("/dev/nvidiactl").exists() or None
        yield bad, f"no GPU for torch with CUDA {torch.version.cuda}", "match torch and driver"
        me.work = burst(me)
        return
    count = torch.cuda.device_count()
    me.agree["gpus"] = f"{count} {torch.cuda.get_device_name()}"
    for i in range(count) if me.world == 1 else [me.local % count]:
        torch.cuda.set_device(i)
        free, total = torch.cuda.mem_get_info()
        yield free < 0.9 * total, f"GPU {i}: {free >> 30} of {total >> 30} GiB free", "end what runs there"
        me.work = burst(me)
        yield nvml(i, count)


def nvml(i, count):
    """NVML's device queries (its API reference)."""
    library, handles = ctypes.CDLL("libnvidia-ml.so.1"), [ctypes.c_void_p() for _ in range(count)]
    library.nvmlInit_v2()
    for j, handle in enumerate(handles):
        uuid = f"GPU-{torch.cuda.get_device_properties(j).uuid}".encode()
        library.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(handle))

    def ask(query, *more):
        value = ctypes.c_ulonglong()
        failed = getattr(library, f"nvmlDeviceGet{query}")(handles[i], *more, ctypes.byref(value))
        return None if failed else value.value

    width, full = ask("CurrPcieLinkWidth"), ask("MaxPcieLinkWidth")
    reasons, errors = ask("CurrentClocksThrottleReasons"), ask("TotalEccErrors", 1, 0)
    links = [ask("NvLinkState", link) for link in range(18)]
    far = {}  # 10 one PCIe switch, 20 several, 30 host bridge, 40 NUMA node, 50 other socket
    for j in {*range(count)} - {i}:
        far[j] = ask("TopologyCommonAncestor", handles[j]), torch.cuda.can_device_access_peer(i, j)
    what = f"GPU {i}: {ask('ClockInfo', 1)} of {ask('MaxClockInfo', 1)} MHz, throttle {reasons}, ECC errors {errors}, "
    what += f"PCIe x{width} of x{full}, NVLinks {links.count(1)} up {links.count(0)} down, (distance, peer) {far}"
    bad = (reasons or 0) & 0xE8 or errors or (width or 0) < (full or 0) or {0, 1} <= {*links}  # 0xE8: heat, power
    return bool(bad), what, "look at cooling, power, seat; drain the node"


def burst(me):
    """Seconds of the rank's own work."""
    size, dtype = (8192, torch.bfloat16) if me.cuda else (256, torch.float32)
    matrix = torch.ones(size, size, device=me.device, dtype=dtype)
    return fastest(me, lambda: matrix @ matrix, 20)


def fastest(me, call, times=5):
    seconds, sync = [], torch.cuda.synchronize if me.cuda else bool
    for _ in range(times):
        sync()
        start = time.perf_counter()
        call()
        sync()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def network(me):
    names = [name for _, name in socket.if_nameindex()]
    yield False, ", ".join(f"{name} {read(f'/sys/class/net/{name}/operstate')}" for name in names), ""
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        if value := os.getenv(variable):
            no, exact, listed = re.fullmatch(r"(\^?)(=?)(.*)", value).groups()  # as NCCL reads it
            fits = str.__eq__ if exact or variable[0] == "G" else str.startswith
            taken = [n for n in names if bool(no) != any(fits(n, wanted) for wanted in listed.split(","))]
            bad = not taken or (me.multi and taken == ["lo"])
            me.blocked |= bad
            yield bad, f"{variable}={value} means {taken}", "name one that reaches the other nodes"
    try:
        address = socket.gethostbyname(me.name)
    except OSError:
        address = "127? unknown"
    bad = me.multi and address[:3] == "127" and not os.environ.get("GLOO_SOCKET_IFNAME")
    yield bad, f"{me.name} resolves to {address}", "mend /etc/hosts or set GLOO_SOCKET_IFNAME"
    if ports := sorted(Path("/sys/class/infiniband").glob("*/ports/*")):
        states = [f"{port.parts[-3]} {read(port / 'state')} {read(port / 'rate')}" for port in ports]
        yield "ACTIVE" not in str(states), f"InfiniBand {states}", "look at cables and subnet manager"
        locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        yield locked != resource.RLIM_INFINITY, f"{locked} bytes may be locked", "ulimit -l unlimited"


def read(path):
    return Path(path).read_text().strip() if Path(path).exists() else "?"


def limits(_):
    files, shared = resource.getrlimit(resource.RLIMIT_NOFILE)[0], os.statvfs("/dev/shm")  # noqa: S108
    yield files < 1024, f"{files} open files", "ulimit -n 65536"
    size = shared.f_blocks * shared.f_frsize >> 20
    yield size < 512, f"{size} MiB shared memory", "docker run --shm-size 16g"


def variables(me):
    lines = [re.fullmatch(r"(\w+)([=>]?)(\S*) ?(.*)", line).groups() for line in VARIABLES.split("\n")]
    for name, sign, rest, effect in lines:
        if value := os.getenv(name):
            bad = sign == ">" or bool(sign and re.fullmatch(rest, value)) or None
            yield bad, f"{name}={value}: {effect or f'old, use {rest}'}", f"unset {name}" if bad else ""
            if not re.search("IFNAME|_HCA|_FILE", name):
                me.agree[name] = value
        # Names one slip away: only these are looked up, never the whole environment.
        slips = {name.removeprefix("TORCH_"), name.replace("_SOCKET", "")}
        for i in range(len(name)):
            for new in ("", *"ABCDEFGHIJKLMNOPQRSTUVWXYZ_", name[i + 1 : i + 2] + name[i]):
                slips |= {name[:i] + new + name[i + gone :] for gone in (0, 1, 2)}
        for wrong in slips - {known for known, *_ in lines}:
            if os.getenv(wrong):
                yield True, f"{wrong} is old or misspelt", f"use {name}"


def disk(me):
    if not me.checkpoint_dir or me.local:
        return
    folder = Path(me.checkpoint_dir).absolute()
    while not folder.exists():
        folder = folder.parent
    free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize / 2**30
    yield free < me.need, f"{free:.2f} GiB free in {folder}", "make room, or lower --need"
    before, after = b"o" * 2**20, b"n" * 2**20
    try:
        with tempfile.TemporaryDirectory(prefix=".check_node", dir=folder) as scratch:
            old, new = Path(scratch, "old"), Path(scratch, "new")
            old.write_bytes(before)
            new.write_bytes(after)
            with old.open("rb") as reader:
                new.replace(old)
                whole = (reader.read(), old.read_bytes()) == (before, after)
        yield not whole, f"rename is {'' if whole else 'not '}atomic", "keep checkpoints elsewhere"
    except OSError as error:
        yield True, f"cannot write in {folder}: {error.strerror}", "look at space and quota"


class PlainUnpickler(pickle.Unpickler):
    """Plain containers only: a pickle that names a class or a function could run code."""

    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"refused, it names {module}.{name} and could run code")


def read_dump(path):
    """Yield for each collective its group (name, description, members) and number, what must be alike, state, line."""
    with path.open("rb") as file:
        dump = json.load(file) if file.peek(1)[:1] == b"{" else PlainUnpickler(file).load()
    for e in dump["entries"]:
        if not e.get("is_p2p"):
            name, (group, about) = e["profiling_name"], e["process_group"]
            uneven = re.search(r":(all_?to_?all|scatter|gather)|_v\b", name)  # each rank has its own sizes
            what = name if uneven else f"{name} {e['input_sizes']} to {e['output_sizes']} {e['input_dtypes']}"
            state = "completed" if name[:4] == "gloo" and e["retired"] else e["state"]  # gloo sets no state
            lines = [f" at {f['filename']}:{f['line']}" for f in e.get("frames", ()) if "/torch/" not in f["filename"]]
            members = dump["pg_config"].get(group, {}).get("ranks", "[]")
            yield (group, about, members), e["collective_seq_id"], (what, state, *lines[:1])


def recorder(me):
    if me.rank or not me.flight_recorder:
        return
    groups, dumped = {}, [0]
    for path in Path(me.flight_recorder).iterdir():
        try:
            dumped.append(int(re.search(r"(\d+)(\.\w+)?$", path.name)[1]))
            for group, number, call in read_dump(path):
                mine = groups.setdefault(group, {}).setdefault(dumped[-1], {})
                mine[number] = mine.get(number, ()) + call
        except Exception as error:
            yield "unknown", f"{path}: {error}", "keep only what torch wrote; its names end in the rank"
    for (name, about, members), calls in sorted(groups.items()):
        ranks = json.loads(members) or (range(max(dumped) + 1) if about == "default_pg" else calls)
        what, odd = first_divergence(calls, ranks)
        yield bool(what), f"group {name} {about}: {what or 'all came alike'}", f"look first at rank {odd}"


def first_divergence(calls, ranks):
    """The first collective that not all ranks made alike, or that did not end; the ranks that stand out."""
    start = max(min(mine) for mine in calls.values())  # a ring buffer forgets the earlier ones
    for number in sorted({key for mine in calls.values() for key in mine if key >= start}):
        made = {rank: calls.get(rank, {}).get(number, ("never came", "completed")) for rank in ranks}
        for part in (0, 1):
            kinds = split({rank: call[part] for rank, call in made.items()})
            if len(kinds) > 1 or (part and "completed" not in kinds):
                told = "; ".join(f"rank {who}: {' '.join(made[who[0]])}" for who in kinds.values())
                # the fewest; where all came, those that got least far: scheduled, started, completed
                odd = min(kinds, key=lambda kind: (part and "scheduled started".find(kind) % 99, len(kinds[kind])))
                return f"collective {number}: {told}", kinds[odd]
    return "", []


CHECKS = (versions, gpus, network, limits, variables, recorder, disk)


def look(me, check):
    for bad, what, remedy in check(me):
        tell(me, [me.rank], LEVELS.get(bad, bad), check.__name__, what, remedy if bad is not False else "")


def tell(me, ranks, *finding):
    me.rows.setdefault(finding, []).extend(ranks)


def bounded(work, me, *more):
    """What went wrong in work, if anything; when it hangs it is left alone."""
    errors = [f"no end after {me.timeout} s"]

    def run():
        try:
            work(me, *more)
            errors.clear()
        except Exception as error:
            errors[:] = [f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]]

    thread = Thread(target=run, daemon=True)
    thread.start()
    thread.join(me.timeout)
    return errors[:]


def connect(me):
    """The store that all ranks share, torchrun's own where it has one."""
    if me.world == 1:
        return dist.HashStore()
    owner = me.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    address, port = os.environ.get("MASTER_ADDR"), int(os.environ.get("MASTER_PORT", "29500"))
    return dist.TCPStore(address, port, None, owner, timedelta(seconds=me.timeout), wait_for_workers=False)


def gather(me, stage, *names):
    """What each rank gives in time."""
    keys = [f"check_node {stage} {r}" for r in range(me.world)]
    me.store.set(keys[me.rank], json.dumps([vars(me)[name] for name in names]))
    with suppress(RuntimeError):
        me.store.wait(keys, timedelta(seconds=me.timeout))
    there = [r for r, key in enumerate(keys) if me.store.check([key])]
    if gone := {*range(me.world)} - {*there}:
        tell(me, gone, "problem", stage, "died, hung or never came", "read its log")
    return {r: json.loads(me.store.get(keys[r])) for r in there}


def measure(me):
    """Start the process group; try and time collectives and links."""
    if me.cuda:
        torch.cuda.set_device(me.local % torch.cuda.device_count())
    patience = timedelta(seconds=10 * me.timeout)  # longer than ours: NCCL's watchdog ends the process
    backend = "nccl" if me.cuda else "gloo"
    dist.init_process_group(backend, store=me.store, rank=me.rank, world_size=me.world, timeout=patience)
    me.speeds = [timed for size in SIZES[me.cuda] for timed in sweep(me, size)]
    data = torch.ones(2, SIZES[me.cuda][1], dtype=torch.int8, device=me.device)
    for turn in (*range(1, 16), 16, 32, 64, 128, 256, 512):
        if (other := me.rank ^ turn) < me.world:
            sides = dist.P2POp(dist.isend, data[0], other), dist.P2POp(dist.irecv, data[1], other)
            me.links[other] = fastest(me, lambda s=sides: [work.wait() for work in dist.batch_isend_irecv([*s])])


def sweep(me, size):
    """Yield for each collective: name, bytes, seconds, whether its result is right."""
    numbers = torch.arange(1, me.world + 1, dtype=torch.int32, device=me.device)
    mine = numbers[me.rank].repeat(size // 4 // me.world)
    whole = mine.repeat(me.world)
    wide, narrow = torch.empty_like(whole), torch.empty_like(mine)
    for name, call, result, right in (
        ("all_gather", lambda: dist.all_gather_into_tensor(wide, mine), wide, numbers.repeat_interleave(len(mine))),
        ("reduce_scatter", lambda: dist.reduce_scatter_tensor(narrow, whole), narrow, numbers.sum()),
        ("all_reduce", lambda: dist.all_reduce(whole), whole, numbers.sum()),
    ):
        call()
        correct = bool((result == right).all())
        yield name, whole.nbytes, fastest(me, call), correct


def bus_bandwidth(name, size, seconds, world):
    """GB/s on the wire, size in bytes of the whole tensor (nccl-tests, doc/PERFORMANCE.md)."""
    return size / seconds * (world - 1) / world * (2 if name == "all_reduce" else 1) / 1e9


def split(values):
    """Ranks by value."""
    kinds = {}
    for rank, value in values.items():
        kinds.setdefault(value, []).append(rank)
    return kinds


def slow(me, kind, seconds):
    for who, each in seconds.items():
        middle = median_low(seconds.values())
        if each > SLOW[me.cuda] * middle:
            what = f"{kind} {who} is slow: {each * 1e3:.2g} ms, median {middle * 1e3:.2g}"
            tell(me, [], "problem", "speed", what, "look at clocks, heat, cables, other jobs")


def together(me):
    """What only all ranks can tell; RuntimeError when rank 0 is gone."""
    me.store = connect(me)
    me.found, me.rows = [*me.rows], {}
    values = gather(me, "start", "name", "found", "agree", "work", "blocked")
    me.clock = time.time()
    for rank, (_, found, *_) in values.items():
        for finding in found:
            tell(me, [rank], *finding)
    for name in sorted({name for value in values.values() for name in value[2]}):
        kinds = split({rank: value[2].get(name) for rank, value in values.items()})
        if len(kinds) > 1:
            tell(me, [], "problem", "agreement", f"{name} by ranks: {kinds}", "make it the same")
    slow(me, "work of rank", {rank: value[3] for rank, value in values.items()})
    if len(values) == me.world and not any(value[4] for value in values.values()):
        me.errors = bounded(measure, me)
        judge(me, gather(me, "collectives", "name", "clock", "errors", "speeds", "links"))
    me.store.set(f"check_node bye {me.rank}", "")
    if me.rank == 0:  # the store may end with it
        with suppress(RuntimeError):
            me.store.wait([f"check_node bye {r}" for r in values], timedelta(seconds=5))


def judge(me, values):
    """Clocks, collectives, links."""
    for rank, (_, clock, errors, *_) in values.items():
        if abs(clock - me.clock) > 1:
            tell(me, [rank], "problem", "clock", f"{clock - me.clock:.0f} s from rank {me.rank}'s", "run NTP")
        for error in errors:
            tell(me, [rank], "problem", "collectives", error, "set NCCL_DEBUG=INFO")
    if len(values) < me.world or any(value[2] for value in values.values()):
        return
    for i, (name, size, *_) in enumerate(me.speeds):
        seconds = mean(value[3][i][2] for value in values.values())
        wrong = [rank for rank, value in values.items() if not value[3][i][3]]
        bus = bus_bandwidth(name, size, seconds, me.world)
        me.bandwidth.append({"collective": name, "bytes": size, "seconds": seconds, "bus_GB_s": bus})
        what = f"{name} {size} bytes: {seconds * 1e3:.2g} ms, bus {bus:.2f} GB/s{', WRONG' * bool(wrong)}"
        tell(me, wrong or values, LEVELS[bool(wrong)], "collectives", what, "test the GPUs" if wrong else "")
    for near in (True, False):
        links = {}
        for a, (name, _, _, _, mine) in values.items():
            links |= {f"{a} - {b}": s for b, s in mine.items() if (name == values[int(b)][0]) == near and a < int(b)}
        slow(me, "link of ranks", links)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint-dir", metavar="DIR", help="try space and renames there")
    parser.add_argument("--need", type=float, default=10, metavar="GIB", help="space that checkpoints need [10]")
    parser.add_argument("--flight-recorder", metavar="DIR", help="find who diverges in torch's dumps")
    parser.add_argument("--timeout", type=float, default=20, metavar="S", help="patience with a step [20]")
    parser.add_argument("--json", action="store_true")
    me = parser.parse_args()
    if me.flight_recorder and not Path(me.flight_recorder).is_dir():
        parser.error(f"--flight-recorder {me.flight_recorder}: no such folder")
    me.rank, me.world = int(os.environ.get("RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1)
    me.local = int(os.environ.get("LOCAL_RANK") or 0)
    me.multi = me.world > int(os.environ.get("LOCAL_WORLD_SIZE") or me.world)
    me.name, me.cuda = socket.gethostname(), bool(torch and torch.cuda.is_available())
    me.device, me.work, me.blocked = "cuda" if me.cuda else "cpu", 0, False
    me.agree, me.links, me.rows, me.speeds, me.bandwidth = {}, {}, {}, [], []
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # so torchrun ends the others when one rank dies: first the report
    if torch is None:
        tell(me, [me.rank], "unknown", "torch", "cannot be imported", "use the Python that trains")
    for check in CHECKS if torch else CHECKS[2:]:
        for error in bounded(look, me, check):
            tell(me, [me.rank], "unknown", check.__name__, error, "")
    try:
        if torch:
            together(me)
    except (RuntimeError, ValueError) as error:
        place = f"{os.environ.get('MASTER_ADDR')} port {os.environ.get('MASTER_PORT')}"
        what = f"{place}: {str(error).splitlines()[0]}"
        tell(me, [me.rank], "problem", "rendezvous", what, "see that rank 0 is up and its port open")
    levels = [finding[0] for finding in me.rows]
    status = 1 if "problem" in levels else 3 if "unknown" in levels else 0
    if me.rank == 0 or "rendezvous" in str(me.rows):
        report(me, status)
    return status


def report(me, status):
    names = ("level", "check", "what", "remedy", "ranks")
    rows = [dict(zip(names, (*finding, ranks), strict=True)) for finding, ranks in me.rows.items()]
    rows.sort(key=lambda row: ("problem", "unknown", "note", "ok").index(row["level"]))
    if me.json:
        print(json.dumps({"status": status, "findings": rows, "bandwidth": me.bandwidth}, indent=1))
        return
    for row in rows:
        print(f"{row['level']:8}{row['check']:12}{str(row['ranks'])[:20]:20} {row['what']}")
        if row["remedy"]:
            print(f"{'':41}-> {row['remedy']}")


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # what hangs would keep the process

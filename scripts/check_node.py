#!/usr/bin/env python3
"""Is this machine, or under torchrun each rank, fit for training? Exit 0: yes, 1: problems, 3: could not tell."""

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
except (ImportError, OSError) as error:
    print(f"check_node.py: {error}; use the Python that trains")
    raise SystemExit(3) from None

SLOW = (10, 1.3)  # times the median, on CPU and GPU
SIZES = ((2**16, 2**20, 2**23), (2**20, 2**25, 2**28))  # bytes, on CPU and GPU
LEVELS = {True: "problem", False: "ok", None: "note"}
# NAME[=HARMFUL] effect, or NAME>SUCCESSOR; from NCCL's user guide (env.html) and torch's ProcessGroupNCCL.hpp
VARIABLES = """\
NCCL_SOCKET_IFNAME interfaces
GLOO_SOCKET_IFNAME interfaces
NCCL_IB_HCA adapters
NCCL_IB_DISABLE=1 no InfiniBand
NCCL_IB_GID_INDEX RoCE address
NCCL_IB_TIMEOUT patience
NCCL_NET plugin
NCCL_NET_GDR_LEVEL=0|LOC how far cards read GPUs
NCCL_P2P_DISABLE=1 copies through the host
NCCL_P2P_LEVEL=0|LOC how far GPUs copy
NCCL_SHM_DISABLE=1 no shared memory
NCCL_NVLS_ENABLE=0 no NVLink sums
NCCL_ALGO=.+ forced
NCCL_PROTO=.+ forced, can corrupt data
NCCL_DEBUG=TRACE log
TORCH_NCCL_ASYNC_ERROR_HANDLING=0 errors hang
TORCH_NCCL_BLOCKING_WAIT=1 CPU waits
TORCH_NCCL_ENABLE_MONITORING=0 hangs last
TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC of hangs
TORCH_NCCL_DUMP_ON_TIMEOUT=0 no dump
TORCH_NCCL_TRACE_BUFFER_SIZE=0 size of dumps
TORCH_FR_BUFFER_SIZE=0 size of dumps
TORCH_FR_DUMP_TEMP_FILE dumps
TORCH_DISTRIBUTED_DEBUG=DETAIL slow
CUDA_LAUNCH_BLOCKING=1 no overlap
CUDA_DEVICE_MAX_CONNECTIONS=1 no overlap in FSDP2
NCCL_IB_CUDA_SUPPORT>NCCL_NET_GDR_LEVEL
NCCL_TREE_THRESHOLD>NCCL_ALGO
NCCL_LL_THRESHOLD>NCCL_PROTO"""


# A check yields whether something is bad (None: only a note), what it is, the remedy.
def gpus(me):
    me.agree = {"python": sys.version.split()[0], "torch": torch.__version__, "cuda": torch.version.cuda}
    if not me.cuda:
        yield Path("/dev/nvidiactl").exists() or None, f"no GPU for {me.agree}", "match torch and driver"
        me.work = burst(me)
        return
    count = torch.cuda.device_count()
    me.agree |= {"nccl": str(torch.cuda.nccl.version()), "gpus": f"{count} {torch.cuda.get_device_name()}"}
    yield False, str(me.agree), ""
    for i in range(count) if me.world == 1 else [me.local % count]:
        torch.cuda.set_device(i)
        free, total = torch.cuda.mem_get_info()
        yield free < 0.9 * total, f"GPU {i}: {free >> 30} of {total >> 30} GiB free", "end what runs there"
        me.work = burst(me)
        yield nvml(i, count)


def nvml(i, count):
    """Device queries of the NVML API reference; None is what a GPU does not tell."""
    library, handles = ctypes.CDLL("libnvidia-ml.so.1"), [ctypes.c_void_p() for _ in range(count)]
    library.nvmlInit_v2()
    for j, handle in enumerate(handles):
        uuid = f"GPU-{torch.cuda.get_device_properties(j).uuid}".encode()
        library.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(handle))

    def ask(query, *more):
        value = ctypes.c_ulonglong()
        failed = getattr(library, "nvmlDeviceGet" + query)(handles[i], *more, ctypes.byref(value))
        return None if failed else value.value

    width, full = ask("CurrPcieLinkWidth"), ask("MaxPcieLinkWidth")
    throttle, ecc = ask("CurrentClocksThrottleReasons"), ask("TotalEccErrors", 1, 0)
    links = [ask("NvLinkState", link) for link in range(18)]
    # ways: 10 PCIe switch, 20 several, 30 host bridge, 40 NUMA node, 50 other socket; peer access
    others = [j for j in range(count) if j != i]
    ways = {j: (ask("TopologyCommonAncestor", handles[j]), torch.cuda.can_device_access_peer(i, j)) for j in others}
    what = (
        f"GPU {i}: {ask('ClockInfo', 1)} of {ask('MaxClockInfo', 1)} MHz, {throttle=} {ecc=} PCIe {width} of {full}, "
    )
    what += f"NVLinks {links.count(1)} up {links.count(0)} down, {ways=}"
    bad = (throttle or 0) & 0xE8 or ecc or (width or 0) < (full or 0) or {0, 1} <= {*links}  # 0xE8: heat, power
    return bool(bad), what, "look at cooling, power, seat; drain the node"


def burst(me):
    size, dtype = (8192, torch.bfloat16) if me.cuda else (256, torch.float32)
    matrix = torch.ones(size, size, device=me.device, dtype=dtype)
    return fastest(me, lambda: matrix @ matrix, 20)


def fastest(me, call, times=5):
    """Seconds."""
    best, sync = 1e9, torch.cuda.synchronize if me.cuda else bool
    for _ in range(times):
        sync()
        start = time.perf_counter()
        call()
        sync()
        best = min(best, time.perf_counter() - start)
    return best


def network(me):
    names = [name for _, name in socket.if_nameindex()]
    yield False, " ".join(f"{name} {read(f'/sys/class/net/{name}/operstate')}" for name in names), ""
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        if value := os.getenv(variable):
            no, exact, listed = re.fullmatch(r"(\^?)(=?)(.*)", value).groups()  # as NCCL reads it
            fits = str.__eq__ if exact or variable[0] == "G" else str.startswith
            taken = [n for n in names if bool(no) != any(fits(n, part) for part in listed.split(","))]
            bad = not taken or (me.multi and taken == ["lo"])
            me.blocked |= bad
            yield bad, f"{variable}={value} means {taken}", "name one that reaches the others"
    host, address = socket.gethostname(), "127? unknown"
    with suppress(OSError):
        address = socket.gethostbyname(host)
    bad = me.multi and address[:3] == "127" and not os.environ.get("GLOO_SOCKET_IFNAME")
    yield bad, f"{host} resolves to {address}", "mend /etc/hosts or set GLOO_SOCKET_IFNAME"
    if ports := [*Path("/sys/class/infiniband").glob("*/ports/*")]:
        states = [f"{port} {read(port / 'state')} {read(port / 'rate')}" for port in ports]
        yield "ACTIVE" not in str(states), str(states), "look at cables and subnet manager"
        locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        yield locked >= 0, f"{locked} bytes may be locked", "ulimit -l unlimited"


def read(path):
    return Path(path).read_text().strip() if Path(path).exists() else "?"


def limits(_):
    files, shared = resource.getrlimit(resource.RLIMIT_NOFILE)[0], os.statvfs("/dev/shm")
    yield files < 1024, f"{files} open files", "ulimit -n 65536"
    size = shared.f_blocks * shared.f_frsize >> 20
    yield size < 512, f"{size} MiB shared memory", "docker run --shm-size 16g"


def variables(me):
    known = {}
    for line in VARIABLES.split("\n"):
        name, *known[name] = re.fullmatch(r"(\w+)([=>]?)(\S*) ?(.*)", line).groups()
    for name, (sign, rest, effect) in known.items():
        if value := os.getenv(name):
            bad = sign == ">" or bool(sign and re.fullmatch(rest, value)) or None
            yield bad, f"{name}={value}: {effect or f'old, use {rest}'}", f"unset {name}" if bad else ""
            if not re.search("IFNAME|HCA|FILE", name):
                me.agree[name] = value
        # Names one slip away: only these are looked up, never the whole environment.
        slips = {name.removeprefix("TORCH_"), name.replace("_SOCKET", "")}
        for i in range(len(name)):
            for new in ("", *"ABCDEFGHIJKLMNOPQRSTUVWXYZ_", name[i + 1 : i + 2] + name[i]):
                slips |= {name[:i] + new + name[i + gone :] for gone in (0, 1, 2)}
        for wrong in slips - {*known}:
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
    try:
        with tempfile.TemporaryDirectory(prefix=".check_node", dir=folder) as scratch:
            old, new = Path(scratch, "old"), Path(scratch, "new")
            old.write_bytes(b"o" * 2**20)
            new.write_bytes(b"n" * 2**20)
            with old.open("rb") as reader:
                new.replace(old)
                whole = {*reader.read()} == {*b"o"} and {*old.read_bytes()} == {*b"n"}
        yield not whole, f"rename is {'' if whole else 'not '}atomic", "keep checkpoints elsewhere"
    except OSError as error:
        yield True, f"cannot write in {folder}: {error.strerror}", "look at space and quota"


class PlainUnpickler(pickle.Unpickler):
    """Plain containers only: a pickle that names a class or a function could run code."""

    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"refused, it names {module}.{name} and could run code")


def recorder(me):
    groups, dumped = {}, 0
    for path in Path(me.flight_recorder).iterdir() if me.flight_recorder and me.rank == 0 else ():
        try:
            rank = int(re.search(r"(\d+)(\.\w+)?$", path.name)[1])
            with path.open("rb") as file:
                dump = json.load(file) if file.peek(1)[:1] == b"{" else PlainUnpickler(file).load()
            for entry in dump["entries"]:
                if not entry.get("is_p2p"):
                    name, about = entry["process_group"]
                    members = dump["pg_config"].get(name, {}).get("ranks", "[]")
                    calls = groups.setdefault((name, about, members), {}).setdefault(rank, {})
                    calls[entry["collective_seq_id"]] = describe(entry)
            dumped = max(dumped, rank)
        except Exception as error:
            yield "unknown", f"{path}: {error}", "keep only what torch wrote; its names end in the rank"
    for (name, about, members), calls in sorted(groups.items()):
        ranks = json.loads(members) or (range(dumped + 1) if about == "default_pg" else calls)
        start = max(min(mine) for mine in calls.values())  # a ring buffer forgets the earlier ones
        for number in sorted({key for mine in calls.values() for key in mine if key >= start}):
            kinds = split({rank: calls.get(rank, {}).get(number, "nothing") for rank in ranks})
            if len(kinds) > 1 or not next(iter(kinds)).endswith("completed"):
                remedy = f"look first at rank {min(kinds.values(), key=len)}"
                yield True, f"group {name} {about}, collective {number} by ranks: {kinds}", remedy
                break
        else:
            yield False, f"group {name} {about}: all came alike", ""


def describe(entry):
    """What must be alike on all ranks, and how far it came."""
    text = entry["profiling_name"]
    state = "completed" if text[:4] == "gloo" and entry["retired"] else entry["state"]  # gloo sets no state
    if not re.search(r":(all_?to_?all|scatter|gather)|_v\b", text):  # their sizes may differ
        text += f" {entry['input_sizes']} to {entry['output_sizes']} {entry['input_dtypes']}"
    return f"{text} {state}"


def split(values):
    """Ranks by value."""
    kinds = {}
    for rank, value in values.items():
        kinds.setdefault(value, []).append(rank)
    return kinds


def tell(me, ranks, *finding):
    me.rows.setdefault(finding, []).extend(ranks)


def look(me, check):
    for bad, what, remedy in check(me):
        tell(me, [me.rank], LEVELS.get(bad, bad), check.__name__, what, "" if bad is False else remedy)


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


def gather(me, stage, *names):
    """What each rank gives in time."""
    keys = [f"check_node {stage} {r}" for r in range(me.world)]
    me.store.set(keys[me.rank], json.dumps([vars(me)[name] for name in names]))
    with suppress(RuntimeError):
        me.store.wait(keys, timedelta(seconds=me.timeout))
    values = {r: json.loads(me.store.get(key)) for r, key in enumerate(keys) if me.store.check([key])}
    if gone := {*range(me.world)} - {*values}:
        tell(me, gone, "problem", stage, "died, hung or never came", "read its log")
    return values


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
            sides = [dist.P2POp(dist.isend, data[0], other), dist.P2POp(dist.irecv, data[1], other)]
            me.links[turn] = fastest(me, lambda s=sides: [work.wait() for work in dist.batch_isend_irecv(s)])


def sweep(me, size):
    """Yield name, bytes, seconds of each collective."""
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
        if not (result == right).all():
            me.errors.append(f"{name} gives wrong values")
        yield name, whole.nbytes, fastest(me, call)


def bus_bandwidth(name, size, seconds, world):
    """GB/s on the wire, size in bytes of the whole tensor (nccl-tests, doc/PERFORMANCE.md)."""
    return size / seconds * (world - 1) / world * (2 if name == "all_reduce" else 1) / 1e9


def slow(me, kind, seconds):
    for who, each in seconds.items():
        times = each / median_low(seconds.values())
        if times > SLOW[me.cuda]:
            what = f"{kind} of rank {who}: {times:.1f} times the median"
            tell(me, [], "problem", "slow", what, "look at heat, cables, other jobs")


def together(me):
    """What only all ranks can tell; RuntimeError when rank 0 is gone."""
    place, port = os.environ.get("MASTER_ADDR") or "localhost", int(os.environ.get("MASTER_PORT") or 0)
    owner = me.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    me.store = dist.TCPStore(place, port, None, owner, timedelta(seconds=me.timeout), wait_for_workers=False)
    me.found, me.rows = [*me.rows], {}
    values = gather(me, "start", "found", "agree", "work", "blocked")
    me.clock = time.time()
    for rank, (found, *_) in values.items():
        for finding in found:
            tell(me, [rank], *finding)
    for name in sorted({name for value in values.values() for name in value[1]}):
        kinds = split({rank: value[1].get(name) for rank, value in values.items()})
        if len(kinds) > 1:
            tell(me, [], "problem", "agreement", f"{name} by ranks: {kinds}", "make it the same")
    slow(me, "work", {rank: value[2] for rank, value in values.items()})
    if len(values) == me.world and not any(value[3] for value in values.values()):
        me.errors += bounded(measure, me)
        judge(me, gather(me, "collectives", "clock", "errors", "speeds", "links"))
    me.store.set(f"check_node bye {me.rank}", "")
    if me.rank == 0:  # the store may end with it
        with suppress(RuntimeError):
            me.store.wait([f"check_node bye {r}" for r in values], timedelta(seconds=5))


def judge(me, values):
    """Clocks, collectives, links."""
    for rank, (clock, errors, *_) in values.items():
        if abs(clock - me.clock) > 1:
            tell(me, [rank], "problem", "clock", f"{clock - me.clock:.0f} s from rank {me.rank}'s", "run NTP")
        for error in errors:
            tell(me, [rank], "problem", "collectives", error, "set NCCL_DEBUG=INFO")
    if len(values) < me.world or any(value[1] for value in values.values()):
        return
    for i, (name, size, _) in enumerate(me.speeds):
        seconds = mean(value[2][i][2] for value in values.values())
        bus = bus_bandwidth(name, size, seconds, me.world)
        tell(me, values, "ok", "collectives", f"{name} {size} bytes: {seconds * 1e3:.2g} ms, bus {bus:.2f} GB/s", "")
    for turn in {turn for value in values.values() for turn in value[3]}:  # its links are all in nodes or all between
        pairs = {(rank, rank ^ int(turn)): value[3][turn] for rank, value in values.items() if turn in value[3]}
        slow(me, "link", {f"{a} - {b}": seconds for (a, b), seconds in pairs.items() if a < b})


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default, text in (
        ("checkpoint-dir", "", "folder to try"),
        ("need", 10.0, "GiB wanted there [10]"),
        ("flight-recorder", "", "folder of torch's dumps"),
        ("timeout", 20.0, "seconds a step may take [20]"),
    ):
        parser.add_argument(f"--{name}", type=type(default), default=default, help=text)
    parser.add_argument("--json", action="store_true")
    me = parser.parse_args()
    me.rank, me.world = int(os.environ.get("RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1)
    me.local = int(os.environ.get("LOCAL_RANK") or 0)
    me.multi = me.world > int(os.environ.get("LOCAL_WORLD_SIZE") or me.world)
    me.cuda, me.work, me.blocked = torch.cuda.is_available(), 0, False
    me.device = "cuda" if me.cuda else "cpu"
    me.agree, me.links, me.rows, me.speeds, me.errors = {}, {}, {}, [], []
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun's when a rank dies: report first
    for check in (gpus, network, limits, variables, recorder, disk):
        for error in bounded(look, me, check):
            tell(me, [me.rank], "unknown", check.__name__, error, "")
    try:
        together(me)
    except (RuntimeError, ValueError) as error:
        what = str(error).splitlines()[0]
        tell(me, [me.rank], "problem", "rendezvous", what, "is rank 0 up, do MASTER_ADDR and MASTER_PORT lead to it?")
        me.rank = 0
    names = ("level", "check", "what", "remedy", "ranks")
    rows = [dict(zip(names, (*finding, ranks), strict=True)) for finding, ranks in me.rows.items()]
    rows.sort(key=lambda row: "puno".find(row["level"][0]))
    if me.json and me.rank == 0:
        print(json.dumps(rows, indent=1))
    for row in rows if me.rank == 0 and not me.json else ():
        print("{level:8}{check:12}{ranks!s:10}{what}  {remedy}".format(**row))
    return {"p": 1, "u": 3}.get(rows[0]["level"][0], 0)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # what hangs would keep the process

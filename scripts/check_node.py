#!/usr/bin/env python3
"""Is this machine, or under torchrun each rank, fit for training? Exit 0: yes, 1: problems, 3: could not tell."""

import argparse
import ctypes
import json
import os
import pickle
import re
import resource
import shutil
import signal
import socket
import sys
import tempfile
import time
import timeit
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from statistics import mean, median_low

try:
    import torch
    import torch.distributed as dist

    CUDA = torch.cuda.is_available()
except (ImportError, OSError) as error:
    torch, CUDA, missing = None, False, str(error)

DEVICE, BACKEND, SIDE = ("cuda", "nccl", 8192) if CUDA else ("cpu", "gloo", 256)
SLOW = 1.3 if CUDA else 10  # times the median
SIZES = (2**20, 2**25, 2**28) if CUDA else (2**16, 2**20, 2**23)  # bytes
LEVELS = {True: "problem", "unknown": "unknown", None: "note", False: "ok"}
# NAME[=HARMFUL] effect; from NCCL's user guide (env.html) and torch's ProcessGroupNCCL.hpp
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
NCCL_IB_CUDA_SUPPORT=.+ old, use NCCL_NET_GDR_LEVEL
NCCL_TREE_THRESHOLD=.+ old, use NCCL_ALGO
NCCL_LL_THRESHOLD=.+ old, use NCCL_PROTO"""


# A check yields whether something is bad (None: only a note), what it is, the remedy.
def gpus(me):
    if not torch:
        yield "unknown", missing, "use the Python that trains"
        return
    me.agree = {"python": sys.version.split()[0], "torch": torch.__version__, "cuda": torch.version.cuda}
    count = torch.cuda.device_count() if CUDA else 0
    if count:
        me.agree |= {"nccl": str(torch.cuda.nccl.version()), "gpus": f"{count} {torch.cuda.get_device_name()}"}
    else:
        me.work = burst()
    lost = not count and (Path("/dev/nvidiactl").exists() or None)
    yield lost, f"{count} GPUs, {me.agree}", "match torch and driver"
    for i in range(count)[me.local :][: 1 if me.world > 1 else None]:
        torch.cuda.set_device(i)
        free, total = torch.cuda.mem_get_info()
        yield free < 0.9 * total, f"GPU {i}: {free >> 30} of {total >> 30} GiB free", "end what runs there"
        me.work = burst()
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
    ways, peer = {}, torch.cuda.can_device_access_peer
    for j in {*range(count)} - {i}:
        ways[j] = ask("TopologyCommonAncestor", handles[j]), peer(i, j)
    what = f"GPU {i}: {ask('ClockInfo', 1)} of {ask('MaxClockInfo', 1)} MHz, {throttle=} {ecc=} PCIe {width} of {full}"
    what += f", NVLinks {links.count(1)} up {links.count(0)} down, {ways=}"
    bad = (throttle or 0) & 0xE8 or ecc or (width or 0) < (full or 0) or {0, 1} <= {*links}  # 0xE8: heat, power
    return bool(bad), what, "look at cooling, power, seat"


def burst():
    matrix = torch.ones(SIDE, SIDE, device=DEVICE, dtype=torch.bfloat16)
    return fastest(20, torch.matmul, matrix, matrix)


def fastest(times, call, *given):
    """Seconds."""
    sync = torch.cuda.synchronize if CUDA else bool
    sync()
    return min(timeit.repeat(lambda: (call(*given), sync()), number=1, repeat=times))


def network(me):
    names = [name for _, name in socket.if_nameindex()]
    yield False, f"{names} {texts('net/*/operstate')}", ""
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        if value := os.getenv(variable):
            no, exact, listed = re.fullmatch(r"(\^?)(=?)(.*)", value).groups()  # as NCCL reads it
            fits = str.__eq__ if exact or variable[0] == "G" else str.startswith
            taken = [n for n in names if bool(no) != any(fits(n, part) for part in listed.split(","))]
            bad = not taken or (me.multi and taken == ["lo"])
            me.blocked |= bad
            yield bad, f"{variable}={value} means {taken}", "name another"
    host, address = socket.gethostname(), "127? unknown"
    with suppress(OSError):
        address = socket.gethostbyname(socket.gethostname())
    bad = me.multi and address[:3] == "127" and not os.getenv("GLOO_SOCKET_IFNAME")
    yield bad, f"{host} resolves to {address}", "mend /etc/hosts or set GLOO_SOCKET_IFNAME"
    if ports := texts("infiniband/*/ports/*/[rs]*ate"):
        yield "ACTIVE" not in str(ports), str(ports), "look at cables, subnet manager"
        locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        yield locked >= 0, f"{locked} bytes may be locked", "ulimit -l unlimited"


def texts(pattern):
    return {str(path): path.read_text().strip() for path in Path("/sys/class").glob(pattern)}


def limits(_):
    files, shared = resource.getrlimit(resource.RLIMIT_NOFILE)[0], shutil.disk_usage("/dev/shm").total >> 20
    yield files < 1024, f"{files} open files", "ulimit -n 65536"
    yield shared < 512, f"{shared} MiB shared memory", "docker run --shm-size 16g"


def variables(me):
    known = dict(re.findall(r"(\w+)(.*)", VARIABLES))
    for name, more in known.items():
        harm, _, effect = more.partition(" ")
        if value := os.getenv(name):
            bad = bool(harm and re.fullmatch(harm[1:], value)) or None
            yield bad, f"{name}={value}: {effect}", f"unset {name}" if bad else ""
            if not re.search("IFNAME|HCA|FILE", name):
                me.agree[name] = value
        # Names one slip away: only these are looked up, never the whole environment.
        slips = {name.removeprefix("TORCH_"), name.replace("_SOCKET", "")}
        cuts = [(name[:i], name[i], name[i + 1 :]) for i in range(len(name))]
        for new in ("", *"ABCDEFGHIJKLMNOPQRSTUVWXYZ_"):
            slips |= {a + each + c for a, b, c in cuts for each in (new, new + b)}
            slips |= {a + c[:1] + b + c[1:] for a, b, c in cuts}
        for wrong in slips - {*known}:
            if os.getenv(wrong):
                yield True, f"{wrong} is old or misspelt", f"use {name}"


def disk(me):
    if not me.checkpoint_dir or me.local:
        return
    folder = Path(me.checkpoint_dir).absolute()
    folder = next(each for each in (folder, *folder.parents) if each.exists())
    free = shutil.disk_usage(folder).free / 2**30
    yield free < me.need, f"{free:.2f} GiB free in {folder}", "make room, or lower --need"
    try:
        with tempfile.TemporaryDirectory(prefix=".check_node", dir=folder) as scratch:
            old, new = Path(scratch, "old"), Path(scratch, "new")
            for path in (old, new):
                path.write_text(path.name * 2**20)
            with old.open() as reader:
                new.replace(old)
                whole = reader.read() + old.read_text() == "old" * 2**20 + "new" * 2**20
        yield not whole, f"rename is {'' if whole else 'not '}atomic", "keep checkpoints elsewhere"
    except OSError as error:
        yield True, f"cannot write in {folder}: {error.strerror}", "look at space, quota"


class PlainUnpickler(pickle.Unpickler):
    """Plain containers only: a pickle that names a class or a function could run code."""

    def find_class(self, module, name):
        raise ValueError(f"refused, it names {module}.{name} and could run code")


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
                    calls[entry["collective_seq_id"]] = describe(**entry)
            dumped = max(dumped, rank)
        except Exception as error:
            yield "unknown", f"{path}: {error}", "keep only torch's dumps there"
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


def describe(profiling_name, state, retired, input_sizes, output_sizes, input_dtypes, **_):
    """What must be alike on all ranks, and how far it came."""
    text = profiling_name
    if not re.search(r":(all_?to_?all|scatter|gather)|_v\b", text):  # their sizes may differ
        text += f" {input_sizes} to {output_sizes} {input_dtypes}"
    return f"{text} {'completed' if text[:4] == 'gloo' and retired else state}"  # gloo sets no state


def split(values):
    """Ranks by value."""
    return {value: [rank for rank in values if values[rank] == value] for value in values.values()}


def tell(me, ranks, check, what, remedy="", level="problem"):
    me.rows.setdefault((check, what, remedy, level), []).extend(ranks)


def look(me, check):
    for bad, what, remedy in check(me):
        tell(me, [me.rank], check.__name__, what, "" if bad is False else remedy, LEVELS[bad])


def bounded(me, work, *given):
    """What went wrong in work, if anything; when it hangs it is left alone."""
    future = ThreadPoolExecutor().submit(work, me, *given)
    if not wait([future], me.timeout).done:
        return [f"no end after {me.timeout} s"]
    error = future.exception()
    return [f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]] if error else []


def gather(me, stage, *names):
    """For each name what the ranks that came in time have, by rank."""
    keys = [f"check_node {stage} {r}" for r in range(me.world)]
    me.store.set(keys[me.rank], json.dumps([vars(me)[name] for name in names]))
    with suppress(RuntimeError):
        me.store.wait(keys, timedelta(seconds=me.timeout))
    values = {r: json.loads(me.store.get(key)) for r, key in enumerate(keys) if me.store.check([key])}
    if gone := {*range(me.world)} - {*values}:
        tell(me, gone, stage, "died, hung or never came", "read its log")
    return [{r: value[i] for r, value in values.items()} for i in range(len(names))]


def measure(me):
    """Start the process group; try and time collectives and links."""
    if CUDA:
        torch.cuda.set_device(me.local % torch.cuda.device_count())
    patience = timedelta(seconds=10 * me.timeout)  # longer than ours: NCCL's watchdog ends the process
    # Its own connection: one that waits lets no other thread through.
    store = dist.TCPStore(me.store.host, me.store.port, timeout=patience, wait_for_workers=False)
    dist.init_process_group(BACKEND, store=store, rank=me.rank, world_size=me.world, timeout=patience)
    me.speeds = [timed for size in SIZES for timed in sweep(me, size)]
    data = torch.ones(2, SIZES[1], dtype=torch.int8, device=DEVICE)
    for turn in (*range(1, 16), 16, 32, 64, 128, 256, 512):
        if (other := me.rank ^ turn) < me.world:
            sides = [dist.P2POp(dist.isend, data[0], other), dist.P2POp(dist.irecv, data[1], other)]
            me.links[turn] = fastest(5, lambda s=sides: [work.wait() for work in dist.batch_isend_irecv(s)])
    dist.destroy_process_group()


def sweep(me, size):
    """Yield name, bytes, seconds of each collective."""
    ranks = torch.arange(me.world, dtype=torch.int32, device=DEVICE)
    mine = ranks[me.rank].repeat(size // 4 // me.world)
    whole, wide, narrow = mine.repeat(me.world), mine.repeat(me.world), mine.clone()
    for name, call, given, right in (
        ("all_gather", dist.all_gather_into_tensor, (wide, mine), ranks.repeat_interleave(len(mine))),
        ("reduce_scatter", dist.reduce_scatter_tensor, (narrow, whole), ranks.sum()),
        ("all_reduce", dist.all_reduce, (whole,), ranks.sum()),
    ):
        call(*given)
        if not (given[0] == right).all():
            me.errors.append(f"{name} gives wrong values")
        yield name, whole.nbytes, fastest(5, call, *given)


def bus_bandwidth(name, size, seconds, world):
    """GB/s on the wire, size in bytes of the whole tensor (nccl-tests, doc/PERFORMANCE.md)."""
    return size / seconds * (world - 1) / world * (2 if name == "all_reduce" else 1) / 1e9


def slow(me, kind, seconds):
    for who, each in seconds.items():
        times = each / median_low(seconds.values())
        if times > SLOW:
            tell(me, [], "slow", f"{kind} {who}: {times:.1f} times the median", "look at heat, cables, jobs")


def together(me):
    """What only all ranks can tell; RuntimeError when rank 0 is gone."""
    place, port = os.getenv("MASTER_ADDR", "localhost"), int(os.getenv("MASTER_PORT", "0"))
    owner = me.rank == 0 and os.getenv("TORCHELASTIC_USE_AGENT_STORE") != "True"
    me.store = dist.TCPStore(place, port, None, owner, timedelta(seconds=me.timeout), wait_for_workers=False)
    me.found, me.rows = [*me.rows], {}
    found, agree, work, blocked = gather(me, "start", "found", "agree", "work", "blocked")
    me.clock = time.time()
    for rank, findings in found.items():
        for finding in findings:
            tell(me, [rank], *finding)
    for name in sorted({name for mine in agree.values() for name in mine}):
        kinds = split({rank: mine.get(name) for rank, mine in agree.items()})
        if len(kinds) > 1:
            tell(me, [], "agreement", f"{name} by ranks: {kinds}", "make it the same")
    slow(me, "work of rank", work)
    if len(work) == me.world and not any(blocked.values()):
        me.errors += bounded(me, measure)
        judge(me, *gather(me, "collectives", "clock", "errors", "speeds", "links"))
    me.store.set(f"check_node bye {me.rank}", "")
    if me.rank == 0:  # the store may end with it
        with suppress(RuntimeError):
            me.store.wait([f"check_node bye {r}" for r in work], timedelta(seconds=5))


def judge(me, clocks, errors, speeds, links):
    for rank, clock in clocks.items():
        if abs(clock - me.clock) > 1:
            tell(me, [rank], "clock", f"{clock - me.clock:.0f} s from rank {me.rank}'s", "run NTP")
        for error in errors[rank]:
            tell(me, [rank], "collectives", error, "set NCCL_DEBUG=INFO")
    if len(errors) < me.world or any(errors.values()):
        return
    for i, (name, size, _) in enumerate(me.speeds):
        seconds = mean(mine[i][2] for mine in speeds.values())
        bus = bus_bandwidth(name, size, seconds, me.world)
        what = f"{name} {size} bytes: {seconds * 1e3:.2g} ms, bus {bus:.2f} GB/s"
        tell(me, speeds, "collectives", what, level="ok")
    for turn in {turn for mine in links.values() for turn in mine}:  # its links are all in nodes or all between
        pairs = {(rank, rank ^ int(turn)): mine[turn] for rank, mine in links.items() if turn in mine}
        slow(me, "link of rank", {f"{a} - {b}": seconds for (a, b), seconds in pairs.items() if a < b})


def show(rows):
    """Lines; in a terminal a table by rich, if installed."""
    with suppress(ImportError):
        if sys.stdout.isatty():
            from rich import get_console, table, text

            drawn = table.Table("level", "check", "ranks", "what", "remedy")
            for row in rows:
                cells = [text.Text(str(row[each.header]), overflow="fold") for each in drawn.columns]
                cells[0].style = {"problem": "red", "ok": "green"}.get(row["level"], "yellow")
                drawn.add_row(*cells)
            return get_console().print(drawn)
    print(*("{level:8}{check:12}{ranks!s:10}{what}  {remedy}".format(**row) for row in rows), sep="\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--checkpoint-dir", default="", help="folder to try")
    add("--need", type=float, default=10, help="GiB wanted there [10]")
    add("--flight-recorder", default="", help="folder of torch's dumps")
    add("--timeout", type=float, default=20, help="seconds a step may take [20]")
    add("--json", action="store_true")
    parser.set_defaults(agree={}, links={}, rows={}, speeds=[], errors=[], work=0, blocked=False)
    me = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun's when a rank dies: report first
    me.rank, me.world = int(os.getenv("RANK", "0")), int(os.getenv("WORLD_SIZE", "1"))
    me.local = int(os.getenv("LOCAL_RANK", "0"))
    me.multi = me.world > int(os.getenv("LOCAL_WORLD_SIZE", me.world))
    for check in (gpus, network, limits, variables, recorder, disk):
        for error in bounded(me, look, check):
            tell(me, [me.rank], check.__name__, error, level="unknown")
    try:
        if torch:
            together(me)
    except (RuntimeError, ValueError) as error:
        tell(me, [me.rank], "rendezvous", str(error).splitlines()[0], "look at rank 0, MASTER_ADDR, MASTER_PORT")
        me.rank = 0
    names = "check", "what", "remedy", "level", "ranks"
    rows = [dict(zip(names, (*finding, ranks))) for finding, ranks in me.rows.items()]
    rows.sort(key=lambda row: [*LEVELS.values()].index(row["level"]))
    if me.json and me.rank == 0:
        print(json.dumps(rows, indent=1))
    elif me.rank == 0:
        show(rows)
    return {"problem": 1, "unknown": 3}.get(rows[0]["level"], 0)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # what hangs would keep the process

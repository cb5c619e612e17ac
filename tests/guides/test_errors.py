"""Every error message of the guides is PyTorch's own: found in the installed torch, or provoked here."""

from __future__ import annotations

import ast
import mmap
import re
from pathlib import Path

import pytest
import torch

from skill_builder.index.entries import load_search
from tests.guide_index import guide_index
from tests.guides import errors_here
from tests.guides.blocks import ROOT
from tests.guides.run_blocks import outcomes

TORCH = Path(torch.__file__).parent
SOURCES = ("distributed", "amp", "nn/parallel", "nn/utils", "optim", "utils/data", "utils/checkpoint.py")
SOURCES += ("serialization.py", "nn/modules/module.py")
LISTS = sorted((ROOT / "references").glob("guide-errors-*.md"))
ENTRY = re.compile(r"^### (.+)\n\n((?:(?!^###? ).*\n)+)", re.MULTILINE)
MESSAGE = re.compile(r"`([^`]+)`")

CUDA_BUILD = "torch 2.13.0 from PyPI, libtorch_cuda.so, compiled from torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp"
ALLOCATOR = "torch 2.13.0 from PyPI, libc10_cuda.so, compiled from c10/cuda/CUDACachingAllocator.cpp"
NCCL = "nvidia-nccl-cu13 2.29.7, which torch 2.13.0 requires, libnccl.so.2"
NOT_IN_A_CPU_BUILD = {
    "Watchdog caught collective operation timeout": CUDA_BUILD,
    "Some NCCL operations have failed or timed out": CUDA_BUILD,
    "ProcessGroupNCCL's watchdog got stuck for": CUDA_BUILD,
    "Tensors must be CUDA and dense": CUDA_BUILD,
    "destroy_process_group() was not called before program exit": CUDA_BUILD,
    "CUDA out of memory. Tried to allocate": ALLOCATOR,
    "unhandled system error": NCCL,
    "unhandled cuda error": NCCL,
    "Duplicate GPU detected": NCCL,
    "remote process exited or there was a network error": NCCL,
    "Bootstrap : no socket interface found": NCCL,
}
"""A message that only a CUDA build or NCCL has -> where its words were read."""

MEASUREMENTS = (errors_here.provoked,)

entries = [
    pytest.param(heading, body, id=f"{path.stem}:{heading}")
    for path in LISTS
    for heading, body in ENTRY.findall(path.read_text("utf-8"))
]


@pytest.fixture(scope="module")
def written():
    """The string constants of torch's Python sources; a hole in an f-string ends one."""
    files = [file for source in SOURCES for file in (TORCH / source, *(TORCH / source).rglob("*.py")) if file.is_file()]
    constants = (
        node.value
        for file in files
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    return "\n".join(constants)


@pytest.fixture(scope="module")
def compiled():
    """Whether torch's compiled libraries, or the headers that their errors come from, hold a text."""
    headers = "\n".join(file.read_text("utf-8") for file in (TORCH / "include").rglob("c10d/*.hpp"))

    def holds(text):
        return text in headers or any(_holds(library, text) for library in sorted((TORCH / "lib").glob("*.so")))

    return holds


def _holds(library, text):
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        return data.find(text.encode()) >= 0


@pytest.fixture(scope="module")
def provoked(measured, tmp_path_factory):
    """What is provoked -> what this torch says."""
    alone = {f"alone-{name}": errors_here.IMPORTS + statement for name, statement in errors_here.ALONE.items()}
    printed = outcomes(tmp_path_factory.mktemp("alone"), alone)
    return measured["provoked"][0] | {name: text for name, (_, text) in printed.items()}


@pytest.fixture(scope="module")
def found(written, compiled, provoked):
    """Whether a message is torch's own."""
    said = "\n".join(provoked.values())
    return lambda message: message in written or message in said or compiled(message)


def test_there_are_enough_entries():
    assert len(entries) >= 44


@pytest.mark.parametrize(("heading", "body"), entries)
def test_an_entry_has_a_message_a_remedy_and_the_official_section(heading, body):
    assert MESSAGE.findall(heading)
    assert len(body.partition("https://")[0]) > 80
    assert "https://docs.pytorch.org/docs/stable/" in body


@pytest.mark.parametrize(("heading", "body"), entries)
def test_the_message_is_torchs_own(heading, body, found):
    messages = [message for message in MESSAGE.findall(heading) if message not in NOT_IN_A_CPU_BUILD]
    assert [message for message in messages if not found(message)] == []


def test_what_is_listed_as_missing_in_a_cpu_build_is_in_the_guides():
    headings = "\n".join(parameters.values[0] for parameters in entries)
    assert [message for message in NOT_IN_A_CPU_BUILD if f"`{message}`" not in headings] == []


@pytest.mark.skipif(torch.version.cuda is not None, reason="a CUDA build has them")
def test_what_is_listed_as_missing_in_a_cpu_build_is_missing(written, compiled):
    assert [message for message in NOT_IN_A_CPU_BUILD if message in written or compiled(message)] == []


def test_everything_provoked_says_something(provoked):
    assert [name for name, said in provoked.items() if not said.strip()] == []


def test_what_torch_says_leads_to_the_entry(provoked, tmp_path):
    """The error line alone as the query: the first result of a search in the guides speaks of it."""
    search = load_search(ROOT / "scripts")
    guides = {path.name: path.read_text("utf-8") for path in sorted((ROOT / "references").glob("guide-*.md"))}
    (tmp_path / "references").mkdir()
    for name, text in guides.items():
        (tmp_path / "references" / name).write_text(text, "utf-8")
    (tmp_path / "references" / "index.json").write_text(guide_index(guides), "utf-8")
    opened = search.Index(str(tmp_path))

    messages = [message for parameters in entries for message in MESSAGE.findall(parameters.values[0])]
    lines = {line: m for said in provoked.values() for line in said.splitlines() for m in messages if m in line}
    wrong = {}
    for line, message in lines.items():
        [first, *_] = search.search(opened, line)
        title = opened.titles[first.section]
        if message not in f"{title} {first.text}":
            wrong[line] = title
    assert len(wrong) <= len(lines) // 10, wrong


def test_a_message_alone_finds_its_entry_first_among_all_of_the_documentation(built_skill):
    search = load_search(built_skill / "scripts")
    opened = search.Index(str(built_skill))
    missed = []
    for message in (message for parameters in entries for message in MESSAGE.findall(parameters.values[0])):
        [first, *_] = search.search(opened, message)
        if message.lower() not in f"{opened.titles[first.section]} {first.text}".lower():
            missed.append(message)
    assert len(missed) <= len(entries) // 4, missed

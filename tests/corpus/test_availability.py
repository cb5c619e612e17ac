"""What the history says of documented objects, as data and as a line in the references."""

import pytest

from skill_builder.corpus.availability import (
    availability,
    contradictions,
    label,
    signature_parameters,
    with_availability,
)
from skill_builder.history import load_history
from skill_builder.records import Availability, Section

FSDP = "torch.distributed.fsdp"


@pytest.fixture(scope="module")
def history():
    return load_history()


def section(name, markdown=""):
    return Section(
        f"https://docs.pytorch.org/docs/stable/a.html#{name}", name, "function", name, "", 1, markdown, "fsdp2"
    )


@pytest.mark.parametrize(
    ("name", "line"),
    [
        (f"{FSDP}.FSDPModule.set_all_reduce_hook", "*Since torch 2.7.*"),
        (
            f"{FSDP}.fully_shard",
            "*Since torch 2.6 (before: `torch.distributed._composable.fsdp.fully_shard`); `ignored_params` since 2.7; "
            "`dp_mesh_dims` since 2.12; `reshard_after_forward` is `None` by default since 2.8, before `True`.*",
        ),
        (
            "torch.distributed.all_gather_into_tensor",
            "*Deprecated since 2.13, use `torch.distributed.all_gather_single`.*",
        ),
        ("torch.cuda.amp.autocast", "*Deprecated, use `torch.amp.autocast`.*"),
        ("torch.distributed.checkpoint.FileSystemWriter.metadata_path", "*Removed in 2.9.*"),
    ],
)
def test_an_object_is_labelled(history, name, line):
    assert label(availability(name, history, "2.13")) == line


@pytest.mark.parametrize("name", [f"{FSDP}.FullyShardedDataParallel", "torch.distributed.barrier_of_nobody"])
def test_what_all_releases_have_or_nobody_knows_has_no_label(history, name):
    assert availability(name, history, "2.11") is None


def test_parameters_later_than_the_documentation_are_left_out(history):
    found = availability(f"{FSDP}.fully_shard", history, "2.9")
    assert found.parameters == (("ignored_params", "2.7"),)
    assert dict(availability(f"{FSDP}.fully_shard", history, "main").parameters)["dp_mesh_dims"] == "2.12"


def test_sections_without_an_object_stay_as_they_are(history):
    heading = Section("https://docs.pytorch.org/docs/stable/a.html#notes", "Notes", "heading", "", "", 1, "", "fsdp2")
    assert with_availability([heading], history, "2.13") == [heading]
    assert with_availability([section(f"{FSDP}.fully_shard")], history, "2.13")[0].availability.since == "2.6"


def test_a_page_that_contradicts_the_history_is_named(history):
    known = section(
        f"{FSDP}.fully_shard", "```python\ndef fully_shard(module, *, mesh=None, dp_mesh_dims=None): ...\n```"
    )
    late = section(f"{FSDP}.FSDPModule.reset_iter_state")
    assert contradictions([known, late], history, "2.13") == []
    assert contradictions([known, late], history, "2.8") == [
        f"{FSDP}.fully_shard(dp_mesh_dims)",
        f"{FSDP}.FSDPModule.reset_iter_state",
    ]
    assert contradictions([known, late], history, "main") == []


def test_the_parameters_of_a_signature_are_read():
    code = (
        "```python\nclass Join:\n    def __init__(self, joinables: list[Joinable], enable=True, **more): ...\n```\ntext"
    )
    assert signature_parameters(section("Join", code)) == ["joinables", "enable"]
    assert signature_parameters(section("Join", "Text only.")) == []


def test_a_label_without_anything_known_but_the_end():
    assert label(Availability(until="2.8", removed="2.9", instead="torch.b")) == "*Removed in 2.9, use `torch.b`.*"

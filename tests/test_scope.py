"""scope.yaml: what it says, and what is said of one that is wrong."""

import pytest

from skill_builder.errors import ScopeError
from skill_builder.scope import SCOPE_FILE, load_scope, page_name

SCOPE = load_scope()


@pytest.mark.parametrize(
    ("page", "anchors", "name", "parent", "category"),
    [
        ("distributed.fsdp.fully_shard", ["x"], "", "", "fsdp2"),
        (
            "distributed.fsdp.fully_shard",
            ["x"],
            "torch.distributed.fsdp.MixedPrecisionPolicy",
            "fsdp2",
            "mixed-precision",
        ),
        ("fsdp", ["x"], "torch.distributed.fsdp.CPUOffload", "fsdp1", "fsdp1"),
        ("distributed", ["devicemesh"], "", "process-groups", "device-mesh"),
        ("distributed", ["x"], "torch.distributed.device_mesh.init_device_mesh", "process-groups", "device-mesh"),
        ("distributed", ["collective-functions"], "", "process-groups", "collectives"),
        ("distributed", ["x"], "torch.distributed.all_reduce", "collectives", "collectives"),
        ("elastic/run", [], "", "", "torchrun"),
        ("elastic/agent", [], "", "", "elastic-internals"),
        ("distributed.tensor.parallel", [], "", "", "tensor-parallel"),
        ("tutorials/recipes/distributed_async_checkpoint_recipe", [], "", "", "checkpoint"),
    ],
)
def test_sections_before_objects_before_what_is_around_before_pages(page, anchors, name, parent, category):
    assert SCOPE.category_of(page, anchors, name, parent) == category


def test_pages_and_objects_in_scope():
    assert SCOPE.has_page("distributed.checkpoint")
    assert not SCOPE.has_page("genindex")
    assert not SCOPE.has_page("nn")
    assert SCOPE.has_object("torch.distributed.rpc.rpc_sync", "anything")
    assert SCOPE.has_object("torch.cuda.amp.autocast", "amp")
    assert not SCOPE.has_object("torch.nn.Linear", "generated/torch.nn.Linear")


def test_every_tutorial_has_a_category():
    for page in SCOPE.tutorials:
        assert SCOPE.category_of(page, (), "", "")


def test_page_names():
    assert page_name("https://docs.pytorch.org/docs/2.9/elastic/run.html#x") == "elastic/run"
    assert page_name("https://docs.pytorch.org/tutorials/a/B.html") == "tutorials/a/B"


def broken(tmp_path, old, new):
    path = tmp_path / "scope.yaml"
    text = SCOPE_FILE.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    line = text[: text.index(old)].count("\n") + 1
    return path, line


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("tutorials:\n", "tutorails:\n", "unknown key 'tutorails'; use one of documentation, tutorials"),
        ("    title: RPC\n", "    titel: RPC\n", "unknown key 'titel'; use one of title, about"),
        ("  file: 250\n", "  file: lots\n", "a whole number is expected here; write digits only"),
        ("  file: 250\n", "  file: 250\n  file: 1\n", "key 'file' stands twice; remove one of the two"),
        ("  exclude:\n", "  exclude: genindex\n  x:\n", "unknown key 'x'"),
        ("  fsdp2:\n", "  FSDP 2:\n", "category 'FSDP 2' is not a file name; use lower-case words joined by hyphens"),
    ],
)
def test_a_wrong_key_is_named_with_its_line(tmp_path, old, new, problem):
    path, line = broken(tmp_path, old, new)
    with pytest.raises(ScopeError) as caught:
        load_scope(path)
    assert str(caught.value).startswith(f"{path}:")
    assert abs(int(caught.value.where.rpartition(":")[2]) - line) <= 1
    assert problem in str(caught.value)


def test_a_missing_key_and_a_file_that_is_no_yaml(tmp_path):
    path, _ = broken(tmp_path, "  rest: 40\n", "")
    with pytest.raises(ScopeError, match="key 'rest' is missing; add it"):
        load_scope(path)
    path.write_text("a: [\n", encoding="utf-8")
    with pytest.raises(ScopeError, match=r"scope.yaml:2: is not YAML"):
        load_scope(path)
    with pytest.raises(ScopeError, match=r"cannot be read \(No such file or directory\)"):
        load_scope(tmp_path / "none.yaml")

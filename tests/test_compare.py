"""Where what a skill documents and the installed torch disagree."""

import pytest

from skill_builder.compare import compare_installed, documented_stubs, parameters_of
from skill_builder.errors import TorchUnusable

TEXT = """# Title

## [Page](https://docs.pytorch.org/docs/stable/distributed.html)

### torch.distributed.barrier

Since 1.0.

```python
def barrier(group=None, async_op=True, device_ids=None): ...
```

```python
barrier()
```

### torch.distributed.teleport

```python
def teleport(place: str) -> None: ...
```

### torch.distributed.fsdp.FSDPModule.unshard

```python
def unshard(async_op: bool = False) -> UnshardHandle | None: ...
```

### torch.distributed.get_rank

```python
def get_rank(group: ProcessGroup | None = None, extra: int = 1) -> int: ...
```

### torch.distributed.ReduceOp

Text.
"""


@pytest.fixture
def skill(tmp_path):
    (tmp_path / "references").mkdir()
    (tmp_path / "references" / "docs-collectives.md").write_text(TEXT, encoding="utf-8")
    return tmp_path


def test_what_is_documented_is_read_from_the_references(skill):
    stubs = documented_stubs(skill)
    assert list(stubs) == [
        "torch.distributed.barrier",
        "torch.distributed.teleport",
        "torch.distributed.fsdp.FSDPModule.unshard",
        "torch.distributed.get_rank",
        "torch.distributed.ReduceOp",
    ]
    assert stubs["torch.distributed.barrier"] == "def barrier(group=None, async_op=True, device_ids=None): ..."
    assert stubs["torch.distributed.ReduceOp"] == ""


def test_missing_names_and_other_signatures_are_listed(skill):
    found = {item.name.rpartition(".")[2]: item for item in compare_installed(skill)}
    assert set(found) == {"barrier", "teleport", "get_rank"}
    assert found["teleport"].kind == "missing"
    assert found["barrier"].documented == "(group=None, async_op=True, device_ids=None)"
    assert "async_op=False" in found["barrier"].installed
    assert found["get_rank"].installed == "(group=None)"


@pytest.mark.parametrize(
    ("stub", "parameters"),
    [
        ("def f(a, /, b=1, *c, d, e=None, **g): ...",
         [("a", None), ("b", "1"), ("*c", None), ("d", None), ("e", "None"), ("**g", None)]),
        ("class C:\n    def __init__(self, a: int): ...", [("a", None)]),
        ("@staticmethod\ndef f(): ...", []),
        ("@property\ndef f(self): ...", None),
        ("def f(a): ...\ndef f(b): ...", None),
        ("x: int = 3", None),
        ("f(a, b", None),
    ],
)  # fmt: skip
def test_parameters_are_read_from_a_stub(stub, parameters):
    assert parameters_of(stub) == parameters


def test_a_torch_that_is_missing_is_said(skill, tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('no torch', name='torch')", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(TorchUnusable, match="torch: is not installed; pip install"):
        compare_installed(skill)

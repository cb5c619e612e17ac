"""What the tests of the guides share."""

import pickle
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest

from tests.guides.blocks import run_module


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test that asks for what was measured waits for all measurements."""
    for item in items:
        if "all_measured" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="package", autouse=True)
def temporary_files_together(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Checkpoints of the blocks and logs of torchrun's launcher go where pytest clears up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("guides")))
        patch.setattr(tempfile, "tempdir", None)  # what the variable said before
        yield


@pytest.fixture(scope="session")
def all_measured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Module of this session -> what its MEASUREMENTS returned; one process loads torch for all of them."""
    modules = sorted({item.module.__name__ for item in request.session.items if hasattr(item.module, "MEASUREMENTS")})
    folder = tmp_path_factory.mktemp("measured")
    run_module("ranks", folder, *modules)
    return {name: pickle.loads((folder / f"{name}.pickle").read_bytes()) for name in modules}


@pytest.fixture(scope="module")
def measured(request: pytest.FixtureRequest, all_measured: dict[str, Any]) -> dict[str, list[Any]]:
    """A measurement of the module -> what it returned on each rank."""
    return all_measured[request.module.__name__]

"""What the tests of the guides share."""

import tempfile
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def temporary_files_together(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Checkpoints of the blocks and logs of torchrun's launcher go where pytest clears up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("guides")))
        patch.setattr(tempfile, "tempdir", None)  # what the variable said before
        yield

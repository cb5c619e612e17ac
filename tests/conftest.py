"""What several tests use."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from documentation_site import render_site, serve


@pytest.fixture(scope="session")
def site_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A rendered documentation site: ``docs/stable/`` and ``tutorials/``. Treat it as read-only."""
    folder = tmp_path_factory.mktemp("site")
    render_site(folder / "root", folder / "doctrees")
    return folder / "root"


@pytest.fixture(scope="session")
def site_url(site_root: Path) -> Iterator[str]:
    """The URL where the site is served; it stands for https://docs.pytorch.org/."""
    with serve(site_root) as url:
        yield url

"""Where releases come from: wheels, from pip or already at hand, opened as zip files and never installed."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from email.parser import HeaderParser
from pathlib import Path
from tempfile import TemporaryDirectory

from skill_builder.errors import HistoryError
from skill_builder.history.facts import Snapshot
from skill_builder.history.release import Release
from skill_builder.history.snapshot import take_snapshot
from skill_builder.records import Progress

PLATFORMS = ("macosx_14_0_arm64", "macosx_11_0_arm64")
"""The smallest wheels with the whole of torch.distributed in them, about 70 MB; Linux wheels carry CUDA."""
PYTHON = "3.12"
"""A Python for which every release since 2.4 has a wheel."""

_VERSION = re.compile(r"\d+\.\d+(\.\d+)?")


def read_release(version: str, *, wheel: Path | None = None, progress: Progress | None = None) -> Snapshot:
    """Read one release of torch.

    Args:
        version: Such as ``2.7.1``; ``2.7`` stands for its last patch release, ``newest`` for the newest.
        wheel: A wheel at hand; without it, pip downloads one into a temporary folder.
        progress: Called with ``"downloading"`` and ``"reading"``.

    Raises:
        HistoryError: No such release, no package index, a wheel that is damaged or is not of this release.
    """
    if version != "newest" and not _VERSION.fullmatch(version):
        raise HistoryError(f"version {version!r}", "is not a release of torch", "write it as 2.7, 2.7.1 or newest")
    if wheel is not None:
        return _matching(read_wheel(wheel, progress=progress), version, wheel)
    with _downloaded(version, progress) as downloaded:
        return _matching(read_wheel(downloaded, progress=progress), version, downloaded)


def read_wheel(path: Path, *, progress: Progress | None = None) -> Snapshot:
    """Read a wheel of torch without unpacking, importing or executing anything in it.

    Raises:
        HistoryError: The file is missing, is damaged or is no wheel of torch.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            sources = _Sources(archive)
            return take_snapshot(_version_of(archive, path), Release(sources.read), sources.modules, progress)
    except OSError as error:
        raise HistoryError(path, f"cannot be read ({error.strerror or error})", "download the wheel again") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, UnicodeDecodeError) as error:
        raise HistoryError(path, "is a damaged wheel", "download the wheel again") from error
    except SyntaxError as error:
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        problem = f"{error.filename} is not Python as Python {python} knows it"
        raise HistoryError(path, problem, "read this release with a newer Python") from error


class _Sources:
    """The Python files of a wheel, by the name of their module."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        names = [name for name in archive.namelist() if name.startswith("torch/") and name.endswith(".py")]
        files = {name.removesuffix(".py").replace("/", "."): name for name in names}
        self._files = {module.removesuffix(".__init__"): name for module, name in sorted(files.items())}

    @property
    def modules(self) -> list[str]:
        return list(self._files)

    def read(self, module: str) -> tuple[str, bool] | None:
        name = self._files.get(module)
        if name is None:
            return None
        return self._archive.read(name).decode("utf-8"), name.endswith("/__init__.py")


def _version_of(archive: zipfile.ZipFile, path: Path) -> str:
    """The release, without what a builder adds to it (``2.13.0+cpu``)."""
    for name in archive.namelist():
        if re.fullmatch(r"torch-[^/]+\.dist-info/METADATA", name):
            return str(HeaderParser().parsestr(archive.read(name).decode("utf-8"))["Version"]).partition("+")[0]
    raise HistoryError(path, "is not a wheel of torch", "name the file torch-VERSION-....whl")


def _matching(snapshot: Snapshot, version: str, wheel: Path) -> Snapshot:
    if version in ("newest", snapshot.version) or snapshot.version.startswith(f"{version}."):
        return snapshot
    problem = f"holds torch {snapshot.version}, not {version}"
    raise HistoryError(wheel, problem, f"name a wheel of {version}, or add {snapshot.version}")


@contextmanager
def _downloaded(version: str, progress: Progress | None) -> Iterator[Path]:
    exact = f"=={version}" if version.count(".") == 2 else f"=={version}.*"
    requirement = "torch" if version == "newest" else f"torch{exact}"
    with TemporaryDirectory(prefix="fsdp-skill-") as folder:
        if progress:
            progress("downloading", 0, 1)
        _download(requirement, folder)
        if progress:
            progress("downloading", 1, 1)
        yield next(Path(folder).glob("torch-*.whl"))


def _download(requirement: str, folder: str) -> None:
    platforms = [option for platform in PLATFORMS for option in ("--platform", platform)]
    command = [sys.executable, "-m", "pip", "download", requirement, "--no-deps", "--only-binary=:all:"]
    command += [*platforms, "--python-version", PYTHON, "--implementation", "cp", "--dest", folder]
    command += ["--quiet", "--no-input", "--disable-pip-version-check", "--retries", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - no shell, fixed words
    if done.returncode:
        raise _download_error(requirement, done.stderr)


def _download_error(requirement: str, said: str) -> HistoryError:
    """What pip's complaint means, in one line."""
    if "No module named pip" in said:
        return HistoryError(sys.executable, "has no pip", "install pip there, or name a wheel at hand")
    if "ResolutionImpossible" in said:
        return HistoryError(
            requirement,
            "is no release, or is excluded by pip's constraints",
            "check the version, and the constraints in pip's settings",
        )
    offered = re.search(r"from versions: ([^)]*)\)", said)
    if offered and offered[1] != "none":
        newest = ", ".join(offered[1].split(", ")[-3:])
        return HistoryError(requirement, "is not a release that the package index offers", f"the newest are {newest}")
    if offered:
        return HistoryError(
            requirement,
            "the package index does not answer, or offers no torch",
            "check the network and pip's index settings, or name a wheel at hand",
        )
    errors = [line.removeprefix("ERROR: ") for line in said.splitlines() if line.startswith("ERROR: ")]
    reason = errors[-1] if errors else "it gives no reason"
    return HistoryError(
        requirement, f"pip cannot download it: {reason}", "mend pip's settings, or name a wheel at hand"
    )

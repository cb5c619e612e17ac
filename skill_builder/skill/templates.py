"""Copies a training template out of the skill, with a header that says where it came from."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import skill_builder
from skill_builder.errors import SkillError
from skill_builder.skill.assemble import sources

TEMPLATES = ("fsdp1", "fsdp2", "mixed_precision", "cpu_offload")
"""Names as ``fsdp-skill template`` takes them: ``fsdp2`` stands for ``scripts/train_fsdp2.py``."""


def copy_template(name: str, dest: Path, *, force: bool) -> Path:
    """Copy one template.

    Args:
        name: One of ``TEMPLATES``; the file's own name, ``train_fsdp2.py``, will do as well.
        dest: The new file, or a folder that exists.
        force: Overwrite a file that is there.

    Returns:
        The file that was written.

    Raises:
        SkillError: No such template, a file in the way, or the disk refused.
    """
    short = name.removeprefix("train_").removesuffix(".py")
    if short not in TEMPLATES:
        raise SkillError(name, "no such template", f"take one of {', '.join(TEMPLATES)}")
    source = f"train_{short}.py"
    target = dest / source if dest.is_dir() else dest
    if not force and (target.exists() or target.is_symlink()):
        raise SkillError(target, "a file is there", "give another name, or --force to overwrite it")
    try:
        _write(target, header(source) + (sources() / "scripts" / source).read_text(encoding="utf-8"))
    except OSError as error:
        raise SkillError(target, f"cannot be written ({error.strerror})", "give a path that can be written") from error
    return target


def header(source: str) -> str:
    """The comment lines that a copy begins with."""
    origin = f"fsdp-skill {skill_builder.__version__}, scripts/{source}"
    return f"# From {origin}. Yours to change; it needs no other file.\n"


def _write(target: Path, text: str) -> None:
    """Write a file whole or not at all."""
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=target.name, suffix=".partial")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(target)
    finally:
        Path(temporary).unlink(missing_ok=True)

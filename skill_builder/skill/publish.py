"""A built skill, packed for others: for one client, as a folder, an archive or a tree for a web server.

The same skill gives the same bytes, whenever and wherever it is packed.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

from skill_builder.errors import InvalidSkill, NotASkill, SkillError
from skill_builder.skill.assemble import SKILL_NAME
from skill_builder.skill.folders import replace_folder
from skill_builder.skill.frontmatter import Format, Target, render, split
from skill_builder.skill.manifest import MANIFEST, listed_files
from skill_builder.skill.validate import validate

CHECKSUMS = "SHA256SUMS"
"""Read by ``sha256sum --check``."""
WELL_KNOWN = ".well-known/skills"
"""Where Hermes looks for skills on a web server, with their list in ``index.json``."""
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip can hold


def require_valid(skill: Path, *, hermes: Path | None = None) -> None:
    """Check a skill before it goes anywhere.

    Raises:
        InvalidSkill: Validation finds an error in it; the first is named.
        SkillError: As `validate`.
    """
    errors = [finding for finding in validate(skill, hermes=hermes) if finding.severity == "error"]
    if errors:
        first = errors[0]
        more = f", and {len(errors) - 1} more errors" if len(errors) > 1 else ""
        raise InvalidSkill(f"{skill}: {first.file}:{first.line}", f"{first.problem}{more}", first.remedy)


def read_whole(skill: Path) -> dict[str, bytes]:
    """The files of a built skill and its manifest; nothing else that lies in the folder.

    Raises:
        NotASkill: The folder has no manifest, or is another skill.
        SkillError: A file is missing or not as it was built.
    """
    if not (skill / MANIFEST).is_file():
        raise NotASkill(skill, "is not a skill that fsdp-skill built", "run fsdp-skill build, and name its folder")
    files = {}
    for path, hash_ in listed_files(skill).items():
        try:
            files[path] = (skill / path).read_bytes()
        except OSError as error:
            raise SkillError(skill / path, f"cannot be read ({error.strerror})", "build the skill again") from error
        if hashlib.sha256(files[path]).hexdigest() != hash_:
            raise SkillError(skill / path, "is not as it was built", "change its source and build the skill again")
    if "SKILL.md" not in files or split(files["SKILL.md"].decode())[0]["name"] != SKILL_NAME:
        raise NotASkill(skill, f"is not the skill {SKILL_NAME}", "name the folder that fsdp-skill build wrote")
    files[MANIFEST] = (skill / MANIFEST).read_bytes()
    return files


def package(skill: Path, target: Target, form: Format) -> dict[str, bytes]:
    """What to publish: path -> bytes, with a file of checksums.

    Args:
        skill: The folder of a built skill.
        target: The client; it decides how SKILL.md is written.
        form: ``dir``: the skill's folder. ``zip``: the same in an archive. ``well-known``: the tree that a web server
            offers at its root, from where Hermes installs ``well-known:https://HOST/.well-known/skills/pytorch-fsdp``.

    Raises:
        SkillError: As `read_whole`.
    """
    files = for_target(read_whole(skill), target)
    packed = _FORMATS[form](files, target)
    sums = "".join(f"{hashlib.sha256(data).hexdigest()}  {path}\n" for path, data in sorted(packed.items()))
    return {**packed, CHECKSUMS: sums.encode()}


def for_target(files: Mapping[str, bytes], target: Target) -> dict[str, bytes]:
    """The files with SKILL.md as a client wants it, and the manifest that fits them."""
    source = files["SKILL.md"].decode()
    version = split(source)[0].get("version", "")
    rendered = render(source, target, version=version).encode()
    manifest = json.loads(files[MANIFEST])
    manifest["files"] = {**manifest["files"], "SKILL.md": hashlib.sha256(rendered).hexdigest()}
    text = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
    return {**files, "SKILL.md": rendered, MANIFEST: text.encode()}


def _folder(files: Mapping[str, bytes], target: Target) -> dict[str, bytes]:
    return {f"{SKILL_NAME}/{path}": data for path, data in files.items()}


def _archive(files: Mapping[str, bytes], target: Target) -> dict[str, bytes]:
    fields = split(files["SKILL.md"].decode())[0]
    version = fields.get("version") or fields["metadata"]["version"]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path, data in sorted(files.items()):
            entry = zipfile.ZipInfo(f"{SKILL_NAME}/{path}", _EPOCH)
            entry.create_system = 3  # Unix, wherever it is packed
            entry.external_attr = (0o100755 if path.startswith("scripts/") else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return {f"{SKILL_NAME}-{version}-{target}.zip": buffer.getvalue()}


def _well_known(files: Mapping[str, bytes], target: Target) -> dict[str, bytes]:
    fields, _ = split(files["SKILL.md"].decode())
    entry = {"name": fields["name"], "description": fields["description"], "files": sorted(files)}
    index = json.dumps({"skills": [entry]}, indent=1, ensure_ascii=False) + "\n"
    return {
        ".nojekyll": b"",  # GitHub Pages leaves out folders that begin with a dot, unless this file is there
        f"{WELL_KNOWN}/index.json": index.encode(),
        **{f"{WELL_KNOWN}/{SKILL_NAME}/{path}": data for path, data in files.items()},
    }


_FORMATS: Mapping[Format, Callable[[Mapping[str, bytes], Target], dict[str, bytes]]] = {
    "dir": _folder,
    "zip": _archive,
    "well-known": _well_known,
}


def write_package(out: Path, files: Mapping[str, bytes]) -> None:
    """Write a package as a folder, in place of the package that was there.

    Raises:
        NotASkill: Something else is there.
        SkillError: The folder cannot be written; what was there is untouched.
    """
    check_package_place(out)
    try:
        out.absolute().parent.mkdir(parents=True, exist_ok=True)
        replace_folder(out, files)
    except OSError as error:
        raise SkillError(out, f"cannot be written ({error.strerror})", "name another folder with --out") from error


def check_package_place(out: Path) -> None:
    """Refuse to replace anything but a package.

    Raises:
        NotASkill: Something else is there.
    """
    is_free = not out.exists() or (out.is_dir() and not any(out.iterdir()))
    if not is_free and not (out / CHECKSUMS).is_file():
        raise NotASkill(out, "it exists and is not what fsdp-skill package wrote", "name another folder with --out")

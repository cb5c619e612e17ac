"""Small built skills, made of sections by the builder's own writers."""

import hashlib
import json

from skill_builder.build import index_all
from skill_builder.corpus.references import write_references
from skill_builder.records import Section
from skill_builder.scope import load_scope

PAGE = "https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html"
SKILL_MD = """\
---
name: pytorch-fsdp
description: FSDP1 and FSDP2 training in PyTorch.
version: 0.1.0
---

# PyTorch FSDP

Search with `scripts/search_docs.py` in `references/index.json`, read `references/docs-fsdp2.md`.
"""
SEARCH = 'print("found")\n'


def heading(title, markdown, anchor=None, page=PAGE, category="fsdp2", parent="", depth=0):
    anchor = anchor or title.lower().replace(" ", "-")
    return Section(f"{page}#{anchor}", title, "heading", "", parent, depth, markdown, category)


def documented(name, stub, text, page=PAGE, category="fsdp2"):
    """An object one level below its page's first heading."""
    markdown = f"```python\n{stub}\n```\n\n{text}"
    return Section(f"{page}#{name}", name, "function", name, "", 1, markdown, category)


def write_built(folder, sections, version="2.13", left_out=(), **files):
    """A skill folder that holds these sections; further files by path."""
    scope = load_scope()
    references = write_references(sections, scope, version)
    without_room = type(references)(references.files, references.placed, tuple(left_out), ())
    texts = {
        "SKILL.md": SKILL_MD,
        "scripts/search_docs.py": SEARCH,
        "references/index.json": index_all(without_room, {}, version),
        **{f"references/{name}": text for name, text in references.files.items()},
        **files,
    }
    hashes = {path: hashlib.sha256(text.encode()).hexdigest() for path, text in sorted(texts.items())}
    coverage = {"documented": len(sections), "with_section": len(sections), "missing": []}
    manifest = {"builder": "0.1.0", "built": "2026-01-02T03:04:05+00:00", "documentation": version}
    texts["manifest.json"] = json.dumps({**manifest, "coverage": coverage, "files": hashes}, indent=1) + "\n"
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return folder

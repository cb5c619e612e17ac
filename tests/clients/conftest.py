"""The real clients, each in its own environment beside the sources, on a home of their own and offline."""

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests import documentation_site
from tests.guide_index import guide_index

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def client_bin():
    """Where the executables of a client are, by the name of its environment."""

    def find(name):
        folder = ROOT / f".venv-{name}" / "bin"
        if not folder.is_dir():
            reason = f"{folder.parent.name} is missing: run `make clients`"
            pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
        return folder

    return find


@pytest.fixture(scope="session")
def client_env(tmp_path_factory):
    """Environment variables for a client: an empty home, and no network but this machine."""
    home = tmp_path_factory.mktemp("home")
    nobody = "http://127.0.0.1:9"  # the discard port, where nothing listens
    return {
        "HOME": str(home),
        "HERMES_HOME": str(home / ".hermes"),
        "HERMES_ALLOW_PRIVATE_URLS": "true",  # 127.0.0.1 is private
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # a package of the scanner's, which downloads otherwise
        "HTTP_PROXY": nobody,
        "HTTPS_PROXY": nobody,
        "NO_PROXY": "127.0.0.1",
        "COLUMNS": "400",  # no line is broken
        "PYTHONUTF8": "1",
        "PATH": os.defpath,
    }


@pytest.fixture(scope="session")
def serve():
    """Serves a folder on 127.0.0.1 and gives its URL."""
    with ExitStack() as servers:
        yield lambda folder: servers.enter_context(documentation_site.serve(folder)).rstrip("/")


SKILL_MD = """\
---
name: pytorch-fsdp
description: FSDP1 and FSDP2 training in PyTorch. Sharding, checkpoints and mixed precision for large models.
version: 0.1.0
author: The authors
license: MIT
platforms:
- linux
- macos
- windows
dependencies:
- torch>=2.6
metadata:
  hermes:
    tags:
    - FSDP
    - PyTorch
---

# PyTorch FSDP

Search first, with `scripts/search_docs.py`; it reads `references/index.json`:

```bash
python ${HERMES_SKILL_DIR}/scripts/search_docs.py -- "How do I shard a model?"
```

- [Start here](references/guide-start.md)
- [Sharding](references/docs-sharding.md)
- `assets/launch.sh`
"""

GUIDE = "# Start\n\nShard each block, then the root: see [sharding].\n\n[sharding]: docs-sharding.md#order\n"

SEARCH = '''\
"""Prints each entry of the index that holds one of the words."""

import json
import sys
from pathlib import Path

INDEX = Path(__file__).resolve().parent.parent / "references" / "index.json"

words = sys.argv[-1].strip("?").split()
found = [text for text in json.loads(INDEX.read_text(encoding="utf-8")) if any(w in text for w in words)]
print("\\n".join(found))
sys.exit(not found)
'''


@pytest.fixture(scope="session")
def small_skill(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist") / "pytorch-fsdp"
    for name, text in {
        "SKILL.md": SKILL_MD,
        "LICENSE": "MIT\n",
        "manifest.json": "{}\n",
        "references/guide-start.md": GUIDE,
        "references/docs-sharding.md": "# Sharding\n\n## Order\n\nCall `fully_shard` on the blocks first.\n",
        "references/index.json": guide_index({"guide-start.md": GUIDE}),
        "scripts/search_docs.py": SEARCH,
        "assets/launch.sh": "torchrun --nproc-per-node 8 train.py\n",
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder

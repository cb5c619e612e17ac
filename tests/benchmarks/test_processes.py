"""Processes that the benchmarks time and weigh, and the server that they read from."""

import sys
import urllib.request

import pytest

from benchmarks.processes import Failed, cold, peak_mb, run_tree, served

ALLOCATE = "import time; held = b'x' * 60_000_000; time.sleep(0.5)"
CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {ALLOCATE!r}], check=True)"


def test_the_memory_of_a_child_counts(tmp_path):
    cost = run_tree([sys.executable, "-c", CHILD], cwd=tmp_path)
    assert 60 < cost.mb < 120
    assert cost.seconds > 0.5


def test_a_program_that_fails_names_its_log(tmp_path):
    with pytest.raises(Failed, match=r"ended with 3; see .*log\.txt"):
        run_tree([sys.executable, "-c", "print('why'); raise SystemExit(3)"], cwd=tmp_path)
    assert (tmp_path / "log.txt").read_text(encoding="utf-8") == "why\n"


def test_a_search_that_fails_is_no_figure():
    with pytest.raises(Failed, match="ended with 2: no such thing"):
        cold([sys.executable, "-c", "import sys; sys.exit(print('no such thing', file=sys.stderr) or 2)"])


def test_the_peak_is_the_processs_own_not_that_of_who_starts_it():
    held = b"x" * 100_000_000
    assert 60 < peak_mb([sys.executable, "-c", ALLOCATE]) < 100
    assert peak_mb([sys.executable, "-c", "pass"]) < 40
    assert held


def test_a_folder_is_served(tmp_path):
    (tmp_path / "a.txt").write_text("text", encoding="utf-8")
    with served(tmp_path) as url, urllib.request.urlopen(f"{url}a.txt") as answer:
        assert answer.read() == b"text"

"""How a build takes a site of 2,000 pages: memory, and time a page.

    python -m benchmarks.scale [PAGES ...]

A site is generated for each number of pages, served on 127.0.0.1, and fetched and parsed by a process of its own. Its
memory is read from the system's account of that process, its parsers' apart; the time is the processor's, its parsers'
with it, so that other work on the machine does not count. Writes scale.md.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
import tempfile
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from skill_builder.pages.site import site_pages
from skill_builder.scope import Scope, load_scope
from skill_builder.workers import parse_pages, started

SIZES = (250, 1000, 2000)
OBJECTS_A_PAGE = 4
NAVIGATION = 150_000
"""Bytes of each page that are no article, as on the official site, where it is 300,000."""
HEAD = b"# Sphinx inventory version 2\n# Project: PyTorch\n# Version: 2.13\n# The rest is compressed using zlib.\n"


def page(number: int) -> bytes:
    """A page with a heading and functions, each with two paragraphs and an example."""
    objects = "".join(
        f'<dl class="py function"><dt class="sig" id="torch.distributed.f{number}_{k}"><span class="sig-name descname">'
        f'f{number}_{k}</span><span class="sig-paren">(</span><em class="sig-param">a: int = {k}</em></dt><dd>'
        f"<p>Gives what <code>f{number}_{k}</code> of page {number} has to give.</p><p>{'More of it. ' * 40}</p>"
        f"<pre>&gt;&gt;&gt; f{number}_{k}({k})\n{number}\n</pre></dd></dl>"
        for k in range(OBJECTS_A_PAGE)
    )
    links = f"<li><a href='elastic/p{number}.html'>A page of many</a></li>"
    navigation = f"<nav><ul>{links * (NAVIGATION // len(links))}</ul></nav>"
    article = (
        f"<article class='bd-article'><section id='p{number}'><h1>Page {number}</h1><p>Text.</p>{objects}</section>"
    )
    return f"<html><body>{navigation}{article}</article></body></html>".encode()


def inventory(count: int) -> bytes:
    """The inventory of a site of so many pages."""
    lines = "".join(f"elastic/p{number} std:doc -1 elastic/p{number}.html P\n" for number in range(count))
    return HEAD + zlib.compress(lines.encode())


@contextmanager
def serving(count: int) -> Iterator[str]:
    """Serve a generated site."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            name = self.path.rpartition("/")[2]
            is_page = name.startswith("p") and name.endswith(".html")
            body = inventory(count) if name == "objects.inv" else page(int(name[1:-5])) if is_page else b""
            self.send_response(200 if body else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


def everything_in_scope() -> Scope:
    """The scope, but for tutorials, which the generated site has none of."""
    return replace(load_scope(), tutorials=())


def measure(url: str, count: int, results: multiprocessing.Queue[tuple[float, float, float, float]]) -> None:
    """Fetch and parse a site, in a process of its own."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        scope = everything_in_scope()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        source = site_pages(scope, base=url)
        with started(2) as pool:
            hashes, sections, _ = parse_pages(
                source.pages, scope, source.version, pool, lambda stage, done, total: None
            )
        assert len(hashes) == count
        own, parsers = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        seconds = own.ru_utime + own.ru_stime + parsers.ru_utime + parsers.ru_stime
        text = sum(len(section.markdown) for section in sections)
        results.put(((own.ru_maxrss - before) / 1024, parsers.ru_maxrss / 1024, text / 2**20, seconds))


def run(count: int) -> tuple[float, float, float, float]:
    """Memory that the build adds and that a parser takes, the size of the text, all in MiB; and seconds."""
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[tuple[float, float, float, float]] = context.Queue()
    with serving(count) as url:
        child = context.Process(target=measure, args=(url, count, results))
        child.start()
        found = results.get()
        child.join()
    return found


def main() -> None:
    """Measure each size, and write the table."""
    sizes = [int(size) for size in sys.argv[1:]] or list(SIZES)
    run(20)  # What is loaded from disk for the first time is not counted.
    rows = []
    for count in sizes:
        memory, parser, text, seconds = run(count)
        site = count * len(page(0)) / 2**20
        rows.append(
            f"| {count} | {site:.0f} | {text:.1f} | {memory:.0f} | {parser:.0f} | {1000 * seconds / count:.0f} |"
        )
        print(rows[-1], flush=True)
    lines = [
        "# A site of many pages",
        "",
        "`python -m benchmarks.scale` generates sites, each page with 150 KB of navigation, as official ones",
        f"have, and fetches and parses them with `--workers 2` (Python {sys.version.split()[0]}). *added* is what",
        "the builder's memory grows by at most, *parser* the most that one of its parsers takes; the time is the",
        "processor's, all processes together.",
        "",
        "| pages | site, MiB | parsed text, MiB | added, MiB | parser, MiB | ms a page |",
        "|---|---|---|---|---|---|",
        *rows,
        "",
    ]
    Path(__file__).with_name("scale.md").write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()

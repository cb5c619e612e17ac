"""Parsing in other processes: only they load what takes pages apart, and they load nothing else of the builder."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager

from skill_builder.errors import SourceError
from skill_builder.records import Page, Progress, Section
from skill_builder.scope import Scope

WORKERS = min(os.cpu_count() or 1, 3)
"""Processes that parse; each takes about 80 MB."""


def parse_pages(
    pages: Iterable[Page], scope: Scope, progress: Progress, *, workers: int = WORKERS
) -> tuple[dict[str, str], list[Section]]:
    """Parse pages in other processes while later ones are still on their way.

    Returns:
        The beginning of each page's SHA-256 by its URL, and all sections in the order of the pages.

    Raises:
        SourceError: A process ended while it parsed.
    """
    hashes: dict[str, str] = {}
    sections: list[Section] = []
    try:
        with _parsers(workers) as pool:
            for done, parsed in enumerate(_parsed(pages, scope, pool, hashes, ahead=4 * workers), 1):
                sections += parsed
                progress("parsing", done, 0)
    except BrokenProcessPool as error:
        raise SourceError(
            f"the pages after {next(reversed(hashes), 'the first')}",
            "a process that parsed them was ended, as happens when memory is short",
            "build again with --workers 1",
        ) from error
    return hashes, sections


@contextmanager
def _parsers(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that parse, all started, and deaf to Ctrl-C from their first moment: ending them is up to this one."""
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"), initializer=_start)
    try:
        with _ignoring_interrupts():
            for _ in range(workers):
                pool.submit(os.getpid)
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _parse(page: Page, scope: Scope) -> list[Section]:
    from skill_builder.corpus.parse import parse_page  # noqa: PLC0415 - see the top

    return parse_page(page, scope)


def _start() -> None:
    """Get a process ready: it ends when the one that started it was killed, and has loaded what parses."""

    def wait() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
    import skill_builder.corpus.parse  # noqa: F401, PLC0415 - see the top


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """Processes that are started here inherit that an interrupt is ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _parsed(
    pages: Iterable[Page], scope: Scope, pool: ProcessPoolExecutor, hashes: dict[str, str], *, ahead: int
) -> Iterator[list[Section]]:
    """The sections of each page in order, no more than a few pages ahead of what is taken."""
    waiting: deque[Future[list[Section]]] = deque()
    for page in pages:
        hashes[page.url] = page.digest
        waiting.append(pool.submit(_parse, page, scope))
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()

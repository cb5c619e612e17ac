"""Work in other processes: only they load what takes pages apart, and they load little else of the builder."""

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
from functools import cache
from typing import TYPE_CHECKING

from skill_builder.errors import SourceError
from skill_builder.records import Page, Progress, Section
from skill_builder.scope import Scope

if TYPE_CHECKING:
    from skill_builder.history import History

WORKERS = min(os.cpu_count() or 1, 3)
"""Processes that parse; each takes about 80 MB."""

AHEAD = 4 * WORKERS
"""Pages that wait for them, of half a megabyte each."""


@contextmanager
def started(workers: int = WORKERS) -> Iterator[ProcessPoolExecutor]:
    """Processes that work, all started, and deaf to Ctrl-C from their first moment: ending them is up to this one.

    Raises:
        SourceError: One of them ended while it worked.
    """
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"), initializer=_start)
    try:
        with _ignoring_interrupts():
            for _ in range(workers):
                pool.submit(os.getpid)
        yield pool
    except BrokenProcessPool as error:
        raise SourceError(
            "the pages",
            "a process that worked on them was ended, as happens when memory is short",
            "build again with --workers 1",
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def parse_pages(
    pages: Iterable[Page],
    scope: Scope,
    version: str,
    pool: ProcessPoolExecutor,
    progress: Progress = lambda stage, done, total: None,
) -> tuple[dict[str, str], list[Section], list[str]]:
    """Parse pages while later ones are still on their way.

    Args:
        pages: In order.
        scope: The categories.
        version: The documentation's, for what the history says of each object.
        pool: Processes that are started.
        progress: Called with ``"parsing"``.

    Returns:
        The beginning of each page's SHA-256 by its URL; all sections in the order of the pages; and the names that
        the documentation has and, by the history, the release has not.
    """
    hashes: dict[str, str] = {}
    sections: list[Section] = []
    contradictory: list[str] = []
    for done, (parsed, names) in enumerate(_parsed(pages, scope, version, pool, hashes), 1):
        sections += parsed
        contradictory += names
        progress("parsing", done, 0)
    return hashes, sections, contradictory


def _parse(page: Page, scope: Scope, version: str) -> tuple[list[Section], list[str]]:
    """The sections of a page with what the history says of them, and what contradicts it."""
    from skill_builder.corpus.availability import contradictions, with_availability  # noqa: PLC0415 - see the top
    from skill_builder.corpus.parse import parse_page  # noqa: PLC0415

    sections = with_availability(parse_page(page, scope), _history(), version)
    return sections, contradictions(sections, _history(), version)


@cache
def _history() -> History:
    from skill_builder.history import load_history  # noqa: PLC0415 - see the top

    return load_history()


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
    pages: Iterable[Page], scope: Scope, version: str, pool: ProcessPoolExecutor, hashes: dict[str, str]
) -> Iterator[tuple[list[Section], list[str]]]:
    """What each page gives, in order, no more than a few pages ahead of what is taken."""
    waiting: deque[Future[tuple[list[Section], list[str]]]] = deque()
    for page in pages:
        hashes[page.url] = page.digest
        waiting.append(pool.submit(_parse, page, scope, version))
        if len(waiting) > AHEAD:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()

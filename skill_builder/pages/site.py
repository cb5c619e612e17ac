"""Documentation pages over HTTP: docs.pytorch.org, or a mirror of it.

What to fetch is read from ``objects.inv``, the site's own list of its pages and documented objects, never from links:
each page has half a megabyte of navigation.
"""

from __future__ import annotations

import re
import threading
import time
import zlib
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from urllib.parse import urljoin, urlsplit

import requests
import sphobjinv
import stamina
from protego import Protego
from requests_cache import CachedSession

from skill_builder import __version__
from skill_builder.errors import (
    InventoryDamaged,
    NotInCache,
    PageMissing,
    PageUnusable,
    SiteUnreachable,
    SourceError,
)
from skill_builder.pages.cache import CacheMode, cache_folder, open_session, trim
from skill_builder.pages.transport import ENCODINGS, LimitedAdapter
from skill_builder.records import DocumentedObject, Page, PageSource, Progress
from skill_builder.scope import OFFICIAL_SITE, Scope

USER_AGENT = f"fsdp-skill/{__version__} (builds an agent skill from PyTorch's documentation)"
_BUSY = (429, 500, 502, 503, 504)
_INVENTORY_BYTES = 32 * 1024 * 1024
"""Unpacked; the official one has 3 MB."""
_VERSION = re.compile(r"\w[\w.+-]{0,40}", re.ASCII)
_PLACE = re.compile(r"[\w./+#$%:-]{1,500}")
"""What a page's or an object's place in the inventory may look like."""
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class Manners:
    """How a site is treated."""

    connections: int = 4
    """Requests under way at once."""
    spacing: float = 0.1
    """Seconds between the starts of two requests; robots.txt may ask for more. A server on this machine needs none."""
    timeout: float = 20.0
    """Seconds to wait for the connection, and for each piece of an answer."""
    deadline: float = 120.0
    """Seconds for one whole answer, so that a server that drips a byte a second does not hold the build."""
    attempts: int = 4
    """Tries for an answer of 429, 5xx, or none."""
    first_wait: float = 0.5
    """Seconds before the second try; before each later one twice as many, and up to as many more by chance."""
    longest_wait: float = 60.0
    """Seconds at most that a server's Retry-After is obeyed; one that asks for more is down for us."""
    page_bytes: int = 8 * 1024 * 1024
    """A larger page is refused; the largest official one has 0.7 MB."""
    redirects: int = 5


def site_pages(
    scope: Scope,
    *,
    base: str = OFFICIAL_SITE,
    docs_version: str = "stable",
    allow_missing: int = 0,
    mode: CacheMode = "use",
    manners: Manners | None = None,
    progress: Progress = lambda stage, done, total: None,
) -> PageSource:
    """Reach the site and list what it documents; the pages follow lazily.

    Args:
        scope: What belongs to the skill.
        base: The site's root, or a mirror's that stands for it; the pages keep their official URLs.
        docs_version: The folder of the documentation: ``stable``, ``main`` or a release such as ``2.9``.
        allow_missing: So many pages may fail: the last good copy stands in, or the page is noted as missing.
        mode: How the pages that were kept from earlier are used.
        manners: How the site is treated.
        progress: Called as pages arrive.

    Raises:
        SiteUnreachable: No answer, or robots.txt forbids these pages.
        PageMissing: There is no such version of the documentation. While iterating: a page is missing.
        InventoryDamaged: ``objects.inv`` cannot be read.
        PageUnusable: While iterating: a page is too large or leads to another host.
        NotInCache: With ``offline``: a page was never fetched.
    """
    client = _Client(base if base.endswith("/") else f"{base}/", manners or Manners(), mode)
    folder = f"docs/{docs_version}/"
    version, objects, names = _read_inventory(client.get(f"{folder}objects.inv"), scope, folder, client.base)
    required = sorted(f"{folder}{name}.html" for name in names)
    optional = sorted(f"{name}.html" for name in scope.tutorials)
    source = PageSource("site", client.base, version, objects, iter(()))
    pages = _stream(client, required, optional, source, progress, allow_missing=allow_missing)
    return replace(source, pages=pages)


def _read_inventory(
    data: bytes, scope: Scope, folder: str, base: str
) -> tuple[str, tuple[DocumentedObject, ...], set[str]]:
    """Version, documented objects in scope, and names of the pages in scope."""
    try:
        _check_whole(data)
        inventory = sphobjinv.Inventory(zlib=data)
    except Exception as error:  # sphobjinv lets through whatever zlib, the decoder and attrs raise
        raise InventoryDamaged(
            f"{base}{folder}objects.inv", f"not a Sphinx inventory ({error})", "see whether the site is complete"
        ) from error
    if not _VERSION.fullmatch(inventory.version):
        raise InventoryDamaged(f"{base}{folder}objects.inv", "it names no version", "see whether this is a Sphinx site")
    objects, names = [], set()
    for item in inventory.objects:
        if not _is_place(item.uri_expanded):
            continue
        page = item.uri_expanded.partition("#")[0].removesuffix(".html")
        if item.domain == "std" and item.role == "doc" and scope.has_page(page):
            names.add(page)
        elif item.domain == "py" and scope.has_object(item.name, page):
            names.add(page)
            objects.append(DocumentedObject(item.name, item.role, f"{OFFICIAL_SITE}{folder}{item.uri_expanded}"))
    if not names:
        raise InventoryDamaged(
            f"{base}{folder}objects.inv", "it lists no page that is in scope", f"compare it with {scope.path}"
        )
    return inventory.version, tuple(sorted(objects, key=lambda item: (item.url, item.name))), names


def _is_place(uri: str) -> bool:
    """Whether an inventory's entry lies in the documentation's own folder, and is written without tricks."""
    return (
        bool(_PLACE.fullmatch(uri))
        and not uri.startswith("/")
        and ".." not in uri.split("#", maxsplit=1)[0]
        and "//" not in uri
    )


def _check_whole(data: bytes) -> None:
    """Refuse an inventory that breaks off, of which sphobjinv reads what there is, or that unpacks to any size."""
    stream = zlib.decompressobj()
    stream.decompress(data.split(b"\n", 4)[4], _INVENTORY_BYTES)
    if stream.unconsumed_tail:
        raise ValueError(f"it has more than {_INVENTORY_BYTES // 2**20} MiB")
    if not stream.eof:
        raise ValueError("it breaks off")


def _stream(
    client: _Client,
    required: list[str],
    optional: list[str],
    source: PageSource,
    progress: Progress,
    *,
    allow_missing: int,
) -> Iterator[Page]:
    paths = required + optional
    missing: list[str] = []
    failed = 0
    with closing(client.fetch_all(paths)) as answers:
        for done, (path, answer) in enumerate(answers, 1):
            progress("fetching", done, len(paths))
            if isinstance(answer, PageMissing) and path in optional:
                missing.append(path)
            elif isinstance(answer, SourceError):
                failed += 1
                if failed > allow_missing:
                    raise answer
                copy = client.last_copy(path)
                if copy is None:
                    missing.append(path)
                else:
                    source.stale.append(OFFICIAL_SITE + path)
                    yield Page(OFFICIAL_SITE + path, copy)
            else:
                yield Page(OFFICIAL_SITE + path, answer)
    trim(client.folder)
    if missing:
        source.notes.append(f"{client.base} lacks {len(missing)} pages: {', '.join(missing)}")
    if source.stale:
        source.notes.append(f"{len(source.stale)} pages are kept from an earlier build: {', '.join(source.stale)}")


class _Busy(Exception):
    """An answer that asks to come again later."""

    def __init__(self, status: int, wait: float | None) -> None:
        super().__init__(f"status {status}")
        self.wait = wait


class _Client:
    """Polite HTTP GET below one root."""

    def __init__(self, base: str, manners: Manners, mode: CacheMode) -> None:
        self.base = base
        self.manners = manners
        self.folder = cache_folder()
        self._mode = mode
        self._root = urlsplit(base)
        self._spacing = 0.0 if self._root.hostname in _LOOPBACK else manners.spacing
        self._turn = threading.Lock()
        self._next_start = 0.0
        self._local = threading.local()
        self._robots = self._read_robots()

    def _read_robots(self) -> Protego:
        robots = Protego.parse("")
        try:
            text = self.get("robots.txt").decode("utf-8", errors="replace")
        except PageMissing:
            return robots
        robots = Protego.parse(text)
        if (delay := robots.crawl_delay(USER_AGENT)) is not None:
            if delay > self.manners.longest_wait:
                raise SiteUnreachable(
                    f"{self.base}robots.txt",
                    f"it asks for {delay:.0f} s between two requests",
                    "name a mirror with --url",
                )
            self._spacing = max(self._spacing, float(delay))
        return robots

    def fetch_all(self, paths: Iterable[str]) -> Generator[tuple[str, str | SourceError], None, None]:
        """Pages in the order of their paths, each as text or as the reason why not.

        No more are fetched ahead than there are connections, so that memory does not grow with the site.
        """
        with ThreadPoolExecutor(self.manners.connections, thread_name_prefix="fetch") as pool:
            ahead: deque[tuple[str, Future[str | SourceError]]] = deque()
            try:
                for path in paths:
                    ahead.append((path, pool.submit(self._page, path)))
                    if len(ahead) > 2 * self.manners.connections:
                        first, answer = ahead.popleft()
                        yield first, answer.result()
                while ahead:
                    first, answer = ahead.popleft()
                    yield first, answer.result()
            finally:
                for _, answer in ahead:
                    answer.cancel()

    def _page(self, path: str) -> str | SourceError:
        try:
            return _decode(self.get(path))
        except SourceError as error:
            return error

    def last_copy(self, path: str) -> str | None:
        """What the site had for a path when it last answered; None where that was not kept."""
        with suppress(SourceError):
            return _decode(self._ask(urljoin(self.base, path), "offline"))
        return None

    def get(self, path: str) -> bytes:
        """The body that the site has for a path below its root."""
        url = urljoin(self.base, path)
        if path != "robots.txt" and not self._robots.can_fetch(url, USER_AGENT):
            raise SiteUnreachable(url, "robots.txt forbids it", "ask the site's owner, or name a mirror with --url")
        attempts = stamina.retry_context(
            on=_how_long_to_wait,
            attempts=self.manners.attempts,
            timeout=None,
            wait_initial=self.manners.first_wait,
            wait_jitter=self.manners.first_wait,
        )
        try:
            for attempt in attempts:
                with attempt:
                    return self._ask(url, self._mode)
        except (_Busy, requests.RequestException) as error:
            raise SiteUnreachable(
                url, f"no answer ({_reason(error)})", "try again later, or name a mirror with --url"
            ) from error
        raise AssertionError("stamina either returns or raises")

    def _ask(self, url: str, mode: CacheMode) -> bytes:
        for _ in range(self.manners.redirects + 1):
            response = self._send(url, mode)
            if response.is_redirect:
                url = self._follow(url, response.headers["Location"])
                continue
            if mode == "offline" and response.status_code == 504:
                raise NotInCache(url, "no copy of it was kept", "build once without --offline")
            if response.status_code in _BUSY:
                raise _Busy(response.status_code, self._retry_after(response))
            if response.status_code != 200:
                raise PageMissing(
                    url, f"the site answers {response.status_code}", "check the address, --url and --docs-version"
                )
            return bytes(response.content)
        raise PageUnusable(url, f"more than {self.manners.redirects} redirects", "check the address in a browser")

    def _send(self, url: str, mode: CacheMode) -> requests.Response:
        session = self._session(mode)
        try:
            return session.get(
                url, allow_redirects=False, timeout=self.manners.timeout, force_refresh=mode == "refresh"
            )
        except ValueError as error:  # From a Location that is no address; many a RequestException is one too.
            if isinstance(error, requests.RequestException):
                raise
            raise PageUnusable(url, f"it redirects to no address ({error})", "check it in a browser") from error

    def _follow(self, url: str, location: str) -> str:
        target = urljoin(url, location)
        parts = urlsplit(target)
        if parts.scheme not in (self._root.scheme, "https") or parts.netloc != self._root.netloc:
            raise PageUnusable(
                url,
                f"it redirects to {target}, outside {self._root.netloc}",
                "check the address, or name that site with --url",
            )
        return target

    def _retry_after(self, response: requests.Response) -> float | None:
        """Seconds, whether the server names them or a date."""
        value = response.headers.get("Retry-After", "")
        try:
            seconds = float(value) if value.isdigit() else parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return None
        return min(max(seconds, 0.0), self.manners.longest_wait)

    def _wait_for_turn(self) -> None:
        with self._turn:
            now = time.monotonic()
            start = max(now, self._next_start)
            self._next_start = start + self._spacing
        time.sleep(start - now)

    def _session(self, mode: CacheMode) -> CachedSession:
        """A session for each thread: requests does not promise that one can be shared."""
        sessions: dict[CacheMode, CachedSession] = self._local.__dict__.setdefault("sessions", {})
        if mode not in sessions:
            session = sessions[mode] = open_session(self.folder, mode)
            session.headers.update({"User-Agent": USER_AGENT, "Accept-Encoding": ENCODINGS})
            session.auth = _no_credentials  # Else requests would look for some in ~/.netrc.
            for scheme in ("http://", "https://"):
                session.mount(
                    scheme,
                    LimitedAdapter(
                        max_bytes=self.manners.page_bytes, deadline=self.manners.deadline, before=self._wait_for_turn
                    ),
                )
        return sessions[mode]


def _no_credentials(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


def _decode(data: bytes) -> str:
    """The text of a page, whatever charset it claims: Sphinx writes UTF-8; where that is spoiled, most is kept."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("windows-1252", errors="replace")


def _how_long_to_wait(error: Exception) -> bool | float:
    """Whether to try again, and after how many seconds if the server said so."""
    if isinstance(error, _Busy):
        return True if error.wait is None else error.wait
    return isinstance(error, requests.RequestException) and not isinstance(error, requests.exceptions.InvalidURL)


def _reason(error: Exception) -> str:
    if isinstance(error, requests.Timeout):
        return "timed out"
    if isinstance(error, requests.ConnectionError):
        return "cannot connect" if "NewConnectionError" in str(error) else "the connection broke"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "the connection broke"
    return str(error)

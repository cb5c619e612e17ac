"""An answer that is whole, and within limits of size and time, whatever the server does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from io import BytesIO
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3 import HTTPResponse
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ReadTimeoutError

from skill_builder.errors import PageUnusable

ENCODINGS = "gzip, deflate"
"""Asked for. Anything else, such as one in the other, could unpack to any size at once."""
_CHUNK = 65536
_PACKED = ("content-encoding", "content-length", "transfer-encoding")
"""Headers that no longer hold of a body that is read."""


class LimitedAdapter(HTTPAdapter):
    """Reads each answer whole before it hands it on.

    Args:
        max_bytes: Of a body, unpacked.
        deadline: Seconds for one answer; however slowly it drips, it ends then.
        before: Called before each request, to wait for its turn.
    """

    def __init__(self, *, max_bytes: int, deadline: float, before: Callable[[], None]) -> None:
        self._max_bytes = max_bytes
        self._deadline = deadline
        self._before = before
        super().__init__()

    def init_poolmanager(self, *arguments: Any, **settings: Any) -> None:  # noqa: ANN401  (what requests passes)
        """Make the pools, with connections that give up on a head that never ends."""
        super().init_poolmanager(*arguments, **settings)
        self.poolmanager.pool_classes_by_scheme = {
            "http": _impatient(HTTPConnectionPool, self._deadline),
            "https": _impatient(HTTPSConnectionPool, self._deadline),
        }

    def send(self, request: requests.PreparedRequest, **settings: Any) -> requests.Response:  # type: ignore[override]  # noqa: ANN401
        """Send a request and read the answer.

        Raises:
            PageUnusable: The body is too large, or packed in a way that was not asked for.
            requests.RequestException: No answer, or one that breaks off or takes too long.
        """
        self._before()
        started = time.monotonic()
        with closing(super().send(request, **{**settings, "stream": True})) as response:
            body = self._body(response, started)
        headers = {name: value for name, value in response.headers.items() if name.lower() not in _PACKED}
        whole = HTTPResponse(
            BytesIO(body),
            headers=headers,
            status=response.status_code,
            reason=response.reason,
            request_url=request.url,
            preload_content=False,
        )
        built: requests.Response = self.build_response(request, whole)
        return built

    def _body(self, response: requests.Response, started: float) -> bytes:
        declared = response.headers.get("Content-Length", "")
        self._check_size(response.url, int(declared) if declared.isascii() and declared.isdigit() else 0)
        encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
        if encoding not in ("", "identity", "gzip", "deflate"):
            raise PageUnusable(response.url, f"it is packed as {encoding!r}", "check what the address leads to")
        body = bytearray()
        with _cut_off(response.raw.shutdown, started + self._deadline) as late:
            for chunk in response.iter_content(_CHUNK):
                body += chunk
                self._check_size(response.url, len(body))
                if late.is_set():
                    break
        return bytes(body)

    def _check_size(self, url: str, size: int) -> None:
        if size > self._max_bytes:
            limit = self._max_bytes // 2**20
            raise PageUnusable(url, f"the page has more than {limit} MiB", "check what the address leads to")


@contextmanager
def _cut_off(shutdown: Callable[[], None], end: float) -> Iterator[threading.Event]:
    """Shut a connection down when its time is over, which ends what is being read from it.

    Raises:
        requests.Timeout: It was shut down.
    """
    late = threading.Event()

    def stop() -> None:
        late.set()
        with suppress(OSError, RuntimeError, ValueError):  # It may have ended by itself.
            shutdown()

    timer = threading.Timer(max(0.0, end - time.monotonic()), stop)
    timer.daemon = True
    timer.start()
    try:
        yield late
    finally:
        timer.cancel()
        if late.is_set():
            raise requests.Timeout("it took too long")


def _impatient(pool: type[HTTPConnectionPool], seconds: float) -> type[HTTPConnectionPool]:
    """A kind of pool whose connections wait that long, all in all, for the head of an answer."""
    connection: Any = pool.ConnectionCls

    class Connection(connection):  # type: ignore[misc]
        def getresponse(self) -> HTTPResponse:
            try:
                with _cut_off(lambda: self.sock.shutdown(2), time.monotonic() + seconds):
                    answer: HTTPResponse = super().getresponse()
                    return answer
            except requests.Timeout as error:
                raise ReadTimeoutError(None, None, str(error)) from error  # type: ignore[arg-type]

    return type(pool.__name__, (pool,), {"ConnectionCls": Connection})

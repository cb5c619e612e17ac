"""A small documentation site, rendered as docs.pytorch.org is: its theme, docstrings of the installed torch.

``documentation/docs`` becomes ``docs/stable/``, ``documentation/tutorials`` becomes ``tutorials/``, each with
its own ``objects.inv``. The text of the pages is written for the tests.
"""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SOURCES = Path(__file__).with_name("documentation")
PLACES = {"docs": "docs/stable", "tutorials": "tutorials"}


def render_site(root: Path, doctrees: Path) -> None:
    """Render both parts side by side, each in a process of its own."""
    running = {
        source: subprocess.Popen(
            [sys.executable, "-m", "sphinx", "-q", "-d", doctrees / source, SOURCES / source, root / place],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for source, place in PLACES.items()
    }
    for source, process in running.items():
        output, _ = process.communicate()
        assert process.returncode == 0, f"Sphinx failed on {source}:\n{output}"


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """Serve a folder on 127.0.0.1; gives the URL, with a slash at its end."""
    with answering(partial(_Quiet, directory=str(folder))) as url:
        yield url


@contextmanager
def answering(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """Let a handler answer on 127.0.0.1; gives the URL, with a slash at its end."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_arguments):
        """Say nothing."""

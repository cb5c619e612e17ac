"""A documentation site on 127.0.0.1 that answers as a test says, and tells what it was asked."""

import hashlib
import zlib
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler

from skill_builder.pages.site import Manners, site_pages
from skill_builder.scope import load_scope
from tests.documentation_site import answering

SCOPE = load_scope()
ROOMY = replace(SCOPE, budget=replace(SCOPE.budget, skill=2000, guides=1000, index=1000, scripts=1000))
"""For tests that build a skill and are not about its size."""
QUICK = Manners(timeout=0.5, deadline=1.0, attempts=3, longest_wait=0.1, first_wait=0.01, page_bytes=20_000)
OFFICIAL = "https://docs.pytorch.org/docs/stable/"


def inventory(*lines):
    head = b"# Sphinx inventory version 2\n# Project: PyTorch\n# Version: 2.13\n# The rest is compressed using zlib.\n"
    return head + zlib.compress("".join(f"{line}\n" for line in lines).encode())


INVENTORY = inventory(
    "fsdp std:doc -1 fsdp.html FSDP",
    "nn std:doc -1 nn.html NN",
    "torch.distributed.fsdp.FSDP py:class 1 fsdp.html#$ -",
    "torch.distributed.Work py:class 1 distributed.html#$ -",
    "torch.nn.Linear py:class 1 nn.html#$ -",
)


def article(title, *objects, text="Text."):
    """A page as Sphinx writes it, with a heading and functions."""
    terms = "".join(
        f'<dl class="py function"><dt class="sig" id="{name}"><span class="sig-name descname">'
        f'{name.rpartition(".")[2]}</span><span class="sig-paren">(</span><span class="sig-paren">)</span></dt>'
        f"<dd><p>What {name} does.</p></dd></dl>"
        for name in objects
    )
    heading = f'<section id="{title}"><h1>{title}</h1><p>{text}</p>{terms}</section>'
    return f'<html><body><article class="bd-article">{heading}</article></body></html>'.encode()


class Site:
    """What a server answers, by path: bytes, a status, or a function of the request handler.

    ``asked`` and ``told`` are the paths of the requests and the statuses of the answers, in order.
    Bytes are sent with an ETag.
    """

    def __init__(self):
        self.answers = {
            "/docs/stable/objects.inv": INVENTORY,
            "/docs/stable/fsdp.html": b"<article>FSDP</article>",
            "/docs/stable/distributed.html": b"<article>distributed</article>",
        }
        self.asked = []
        self.told = []
        self.agents = set()
        self.most_at_once = 0

    @classmethod
    def of(cls, **pages):
        """A site that a skill can be built from: page -> the names of the functions that it documents."""
        site = cls()
        lines = [f"{page} std:doc -1 {page}.html X" for page in pages]
        lines += [f"{name} py:function 1 {page}.html#$ -" for page, names in pages.items() for name in names]
        site.answers = {f"/docs/stable/{page}.html": article(page, *names) for page, names in pages.items()}
        site.answers["/docs/stable/objects.inv"] = inventory(*lines)
        return site

    def pages(self, url, **settings):
        settings.setdefault("manners", QUICK)
        source = site_pages(SCOPE, base=url, **settings)
        return source, list(source.pages)


@contextmanager
def serving(site):
    running = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            running.append(self.path)
            site.most_at_once = max(site.most_at_once, len(running))
            site.asked.append(self.path)
            site.agents.add(self.headers["User-Agent"])
            try:
                answer = site.answers.get(self.path, 404)
                if callable(answer):
                    answer = answer(self)
                if isinstance(answer, int):
                    self.reply(answer, b"")
                elif answer is not None:
                    tag = f'"{hashlib.sha256(answer).hexdigest()}"'
                    known = self.headers["If-None-Match"] == tag
                    self.reply(304 if known else 200, b"" if known else answer, ETag=tag)
            finally:
                running.remove(self.path)

        def reply(self, status, body, **headers):
            site.told.append(status)
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    with answering(Handler) as url:
        yield url


def failing(times, status, **headers):
    """Answers with a status a few times, then with a page."""
    left = [times]

    def answer(handler):
        if not left[0]:
            return b"<article>at last</article>"
        left[0] -= 1
        return handler.reply(status, b"", **headers)

    return answer


def redirect(location):
    return lambda handler: handler.reply(302, b"", Location=location)

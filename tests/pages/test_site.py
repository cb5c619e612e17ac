"""The site source, against servers on 127.0.0.1 that behave and that do not."""

import re
import time

import pytest

from skill_builder.errors import InventoryDamaged, PageMissing, PageUnusable, SiteUnreachable
from skill_builder.pages.site import Manners, site_pages
from skill_builder.records import DocumentedObject
from tests.odd_site import INVENTORY, OFFICIAL, QUICK, SCOPE, Site, failing, inventory, redirect, serving


@pytest.fixture
def site():
    return Site()


@pytest.fixture
def url(site):
    with serving(site) as url:
        yield url


def test_pages_in_scope_come_in_order_under_their_official_urls(site, url):
    source, pages = site.pages(url)
    assert (source.origin, source.address, source.version) == ("site", url, "2.13")
    assert source.objects == (
        DocumentedObject("torch.distributed.Work", "class", f"{OFFICIAL}distributed.html#torch.distributed.Work"),
        DocumentedObject("torch.distributed.fsdp.FSDP", "class", f"{OFFICIAL}fsdp.html#torch.distributed.fsdp.FSDP"),
    )
    assert [(page.url, page.html) for page in pages] == [
        (f"{OFFICIAL}distributed.html", "<article>distributed</article>"),
        (f"{OFFICIAL}fsdp.html", "<article>FSDP</article>"),
    ]


def test_only_what_is_in_scope_is_asked_for(site, url):
    site.pages(url)
    tutorials = [f"/{page}.html" for page in sorted(SCOPE.tutorials)]
    assert sorted(site.asked) == sorted(
        [
            "/robots.txt",
            "/docs/stable/objects.inv",
            "/docs/stable/distributed.html",
            "/docs/stable/fsdp.html",
            *tutorials,
        ]
    )
    assert [agent.partition("/")[0] for agent in site.agents] == ["fsdp-skill"]


def test_tutorials_may_be_missing_and_that_is_noted(site, url):
    site.answers["/tutorials/intermediate/TP_tutorial.html"] = b"<article>TP</article>"
    source, pages = site.pages(url)
    assert pages[-1].url == "https://docs.pytorch.org/tutorials/intermediate/TP_tutorial.html"
    assert [note.partition(":")[0] for note in source.notes] == ["http"]
    assert f"lacks {len(SCOPE.tutorials) - 1} pages" in source.notes[0]


def test_another_version_of_the_documentation(site, url):
    for path in list(site.answers):
        site.answers[path.replace("stable", "2.9")] = site.answers.pop(path)
    _, pages = site.pages(url, docs_version="2.9")
    assert pages[0].url == "https://docs.pytorch.org/docs/2.9/distributed.html"
    with pytest.raises(PageMissing, match=r"the site answers 404; check the address, --url and --docs-version"):
        site.pages(url)


def test_no_more_connections_than_is_polite(site, url):
    def slow(handler):
        time.sleep(0.02)
        return b"<article>x</article>"

    names = [f"elastic/p{n}" for n in range(30)]
    site.answers["/docs/stable/objects.inv"] = inventory(*(f"{name} std:doc -1 {name}.html X" for name in names))
    site.answers.update({f"/docs/stable/{name}.html": slow for name in names})
    _, pages = site.pages(url)
    assert len(pages) == 30
    assert site.most_at_once <= QUICK.connections


def test_pages_are_not_fetched_far_ahead_of_their_use(site, url):
    names = [f"elastic/p{n}" for n in range(40)]
    site.answers["/docs/stable/objects.inv"] = inventory(*(f"{name} std:doc -1 {name}.html X" for name in names))
    site.answers.update({f"/docs/stable/{name}.html": b"<article>x</article>" for name in names})
    source = site_pages(SCOPE, base=url, manners=QUICK)
    next(source.pages)
    time.sleep(0.2)
    assert sum(path.startswith("/docs/stable/elastic/") for path in site.asked) <= 2 * QUICK.connections + 2
    source.pages.close()


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_busy_site_is_asked_again(site, url, status):
    site.answers["/docs/stable/fsdp.html"] = failing(2, status, Retry_After="0")
    _, pages = site.pages(url)
    assert pages[-1].html == "<article>at last</article>"
    assert site.asked.count("/docs/stable/fsdp.html") == 3


def test_a_site_that_stays_busy_is_given_up_after_the_attempts(site, url):
    site.answers["/docs/stable/fsdp.html"] = failing(99, 503, Retry_After="0")
    with pytest.raises(SiteUnreachable, match=r"/docs/stable/fsdp\.html: no answer \(status 503\)"):
        site.pages(url)
    assert site.asked.count("/docs/stable/fsdp.html") == QUICK.attempts


def test_the_time_that_the_site_asks_for_is_waited(site, url):
    patient = Manners(attempts=2, longest_wait=1.0)
    site.answers["/docs/stable/fsdp.html"] = failing(1, 429, Retry_After="1")
    started = time.monotonic()
    site.pages(url, manners=patient)
    assert time.monotonic() - started >= 1.0


def test_a_wait_may_be_named_by_a_date(site, url):
    site.answers["/docs/stable/fsdp.html"] = failing(1, 503, Retry_After="Wed, 21 Oct 2015 07:28:00 GMT")
    _, pages = site.pages(url)
    assert pages[-1].html == "<article>at last</article>"


def test_an_answer_that_breaks_off_is_asked_for_again(site, url):
    tries = []

    def answer(handler):
        tries.append(1)
        if len(tries) > 1:
            return b"<article>whole</article>"
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b"<article>half")
        handler.close_connection = True
        return None

    site.answers["/docs/stable/fsdp.html"] = answer
    _, pages = site.pages(url)
    assert pages[-1].html == "<article>whole</article>"


def test_a_server_that_drips_does_not_hold_the_build(site, url):
    def answer(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", "100000")
        handler.end_headers()
        try:
            for _ in range(60):
                handler.wfile.write(b"x" * 70)
                handler.wfile.flush()
                time.sleep(0.05)
        except OSError:
            pass
        handler.close_connection = True

    site.answers["/docs/stable/fsdp.html"] = answer
    with pytest.raises(SiteUnreachable, match=r"no answer"):
        site.pages(url, manners=Manners(timeout=0.5, deadline=0.3, attempts=1))


def test_a_redirect_within_the_site_is_followed(site, url):
    site.answers["/docs/stable/fsdp.html"] = redirect("/docs/stable/distributed.html")
    _, pages = site.pages(url)
    assert pages[-1].html == "<article>distributed</article>"
    assert pages[-1].url == f"{OFFICIAL}fsdp.html"


@pytest.mark.parametrize("location", ["http://127.0.0.2:9/x", "file:///etc/passwd", "ftp://a.b/c", "//other.host/x"])
def test_a_redirect_out_of_the_site_is_refused(site, url, location):
    site.answers["/docs/stable/fsdp.html"] = redirect(location)
    with pytest.raises(PageUnusable, match=r"it redirects to .*, outside 127\.0\.0\.1"):
        site.pages(url)


def test_redirects_in_a_circle_end(site, url):
    site.answers["/docs/stable/fsdp.html"] = redirect("/docs/stable/fsdp.html")
    with pytest.raises(PageUnusable, match="more than 5 redirects"):
        site.pages(url)


def test_a_page_that_is_too_large_is_refused(site, url):
    site.answers["/docs/stable/fsdp.html"] = b"x" * 30_000
    with pytest.raises(PageUnusable, match=r"the page has more than \d+ MiB"):
        site.pages(url)


def test_robots_txt_is_obeyed(site, url):
    site.answers["/robots.txt"] = b"User-agent: *\nDisallow: /docs/stable/fsdp.html\n"
    with pytest.raises(SiteUnreachable, match=re.escape("/docs/stable/fsdp.html: robots.txt forbids it")):
        site.pages(url)
    assert "/docs/stable/fsdp.html" not in site.asked


def test_a_delay_that_robots_txt_asks_for_is_kept(site, url):
    site.answers["/robots.txt"] = b"User-agent: *\nCrawl-delay: 0.05\n"
    started = time.monotonic()
    site.pages(url)
    assert time.monotonic() - started >= 0.05 * (len(site.asked) - 2)


def test_a_missing_page_fails_unless_that_is_allowed(site, url):
    del site.answers["/docs/stable/fsdp.html"]
    with pytest.raises(PageMissing, match=r"/docs/stable/fsdp\.html: the site answers 404"):
        site.pages(url)
    source, pages = site.pages(url, allow_missing=1)
    assert [page.url for page in pages] == [f"{OFFICIAL}distributed.html"]
    assert "docs/stable/fsdp.html" in source.notes[0]


@pytest.mark.parametrize(
    "data", [b"", b"<html>not found</html>", INVENTORY[:-20], inventory("nn std:doc -1 nn.html NN")]
)
def test_a_damaged_inventory_is_named(site, url, data):
    site.answers["/docs/stable/objects.inv"] = data
    with pytest.raises(InventoryDamaged, match=r"/docs/stable/objects\.inv: "):
        site.pages(url)


def test_a_site_that_is_down_is_named():
    with serving(Site()) as url:
        pass
    with pytest.raises(SiteUnreachable, match=r"no answer \(cannot connect\); try again later, or name a mirror"):
        site_pages(SCOPE, base=url, manners=Manners(attempts=1))


def test_bytes_that_are_not_utf_8_do_not_stop_the_build(site, url):
    site.answers["/docs/stable/fsdp.html"] = '<html><head><meta charset="latin-1"></head>é</html>'.encode("latin-1")
    _, pages = site.pages(url)
    assert "é" in pages[-1].html

"""What the site answered before is kept, and asked for again only by the rules."""

import os

import pytest

from skill_builder.errors import NotInCache, SiteUnreachable
from skill_builder.pages.cache import cache_folder, clear, trim
from tests.odd_site import Site, redirect, serving


@pytest.fixture
def site():
    return Site()


@pytest.fixture
def url(site):
    with serving(site) as url:
        yield url


def again(site, url, **settings):
    """The statuses of the answers, by path, when the site is read once more."""
    site.asked.clear()
    site.told.clear()
    _, pages = site.pages(url, **settings)
    return dict(zip(site.asked, site.told, strict=True)), pages


def test_what_has_not_changed_is_not_sent_again(site, url):
    _, first = site.pages(url)
    told, pages = again(site, url)
    assert pages == first
    assert {path for path, status in told.items() if status == 304} == set(site.answers)
    assert {status for path, status in told.items() if path not in site.answers} == {404}


def test_what_has_changed_is_sent(site, url):
    site.pages(url)
    site.answers["/docs/stable/fsdp.html"] = b"<article>new</article>"
    told, pages = again(site, url)
    assert pages[-1].html == "<article>new</article>"
    assert told["/docs/stable/fsdp.html"] == 200
    assert told["/docs/stable/distributed.html"] == 304


def test_a_date_of_change_does_as_well_as_a_tag(site, url):
    def dated(handler):
        if handler.headers["If-Modified-Since"]:
            return handler.reply(304, b"")
        return handler.reply(200, b"<article>dated</article>", Last_Modified="Wed, 21 Oct 2015 07:28:00 GMT")

    site.answers["/docs/stable/fsdp.html"] = dated
    site.pages(url)
    told, pages = again(site, url)
    assert told["/docs/stable/fsdp.html"] == 304
    assert pages[-1].html == "<article>dated</article>"


def test_what_is_fresh_is_not_asked_for_but_when_checking(site, url):
    def fresh(handler):
        if handler.headers["If-None-Match"]:
            return handler.reply(304, b"")
        return handler.reply(200, b"<article>fresh</article>", ETag='"1"', Cache_Control="max-age=3600")

    site.answers["/docs/stable/fsdp.html"] = fresh
    site.pages(url)
    told, pages = again(site, url)
    assert "/docs/stable/fsdp.html" not in told
    assert pages[-1].html == "<article>fresh</article>"
    told, _ = again(site, url, mode="check")
    assert told["/docs/stable/fsdp.html"] == 304


def test_what_must_not_be_kept_is_not(site, url):
    site.answers["/docs/stable/fsdp.html"] = lambda handler: handler.reply(
        200, b"<article>secret</article>", ETag='"1"', Cache_Control="no-store"
    )
    site.pages(url)
    with pytest.raises(NotInCache, match=r"fsdp\.html: no copy of it was kept; build once without --offline"):
        site.pages(url, mode="offline")


def test_refresh_asks_for_everything_anew(site, url):
    site.pages(url)
    told, _ = again(site, url, mode="refresh")
    assert {told[path] for path in site.answers} == {200}


def test_offline_sends_nothing(site, url):
    _, first = site.pages(url)
    told, pages = again(site, url, mode="offline")
    assert told == {}
    assert pages == first
    clear(cache_folder())
    with pytest.raises(NotInCache):
        site.pages(url, mode="offline")


def test_only_answers_that_hold_a_page_are_kept(site, url):
    site.pages(url)
    site.answers["/docs/stable/fsdp.html"] = redirect("http://127.0.0.2/")
    _, pages = site.pages(url, allow_missing=1)
    assert pages[-1].html == "<article>FSDP</article>"


@pytest.mark.parametrize(
    "damage", [lambda data: b"", lambda data: data[:-7], lambda data: data[:99] + b"x" + data[100:]]
)
def test_a_damaged_copy_is_as_good_as_none(site, url, damage):
    _, first = site.pages(url)
    for file in cache_folder().iterdir():
        file.write_bytes(damage(file.read_bytes()))
    told, pages = again(site, url)
    assert pages == first
    assert {told[path] for path in site.answers} == {200}


def test_files_are_named_for_no_address(site, url):
    site.pages(url)
    names = [file.name for file in cache_folder().iterdir()]
    assert len(names) == len(site.answers)
    assert all(len(name) == 64 and set(name) <= set("0123456789abcdef") for name in names)


def test_a_cache_that_cannot_be_written_stops_nothing(site, url, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert len(site.pages(url)[1]) == 2


def test_no_credentials_are_looked_for(site, url, monkeypatch, tmp_path):
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login someone password word\n", encoding="utf-8")
    monkeypatch.setenv("NETRC", str(netrc))
    sent = []
    site.answers["/docs/stable/fsdp.html"] = lambda handler: sent.append(handler.headers["Authorization"]) or b"<p>"
    site.pages(url)
    assert sent == [None]


def test_what_was_used_longest_ago_goes_first(tmp_path):
    for age, name in enumerate("abcd"):
        (tmp_path / name).write_bytes(b"x" * 100)
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    trim(tmp_path, 250)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a", "b"]


def test_clearing_says_how_much_there_was(tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "a").write_bytes(b"x" * 100)
    assert clear(tmp_path / "cache") == 100
    assert clear(tmp_path / "cache") == 0
    assert not (tmp_path / "cache").exists()


def test_a_page_that_fails_is_replaced_by_its_last_good_copy(site, url):
    _, first = site.pages(url)
    site.answers["/docs/stable/fsdp.html"] = 500
    with pytest.raises(SiteUnreachable):
        site.pages(url)
    source, pages = site.pages(url, allow_missing=1)
    assert pages == first
    assert source.stale == ["https://docs.pytorch.org/docs/stable/fsdp.html"]
    assert "1 pages are kept from an earlier build" in source.notes[-1]


def test_no_more_pages_may_fail_than_is_allowed(site, url):
    site.pages(url)
    site.answers["/docs/stable/fsdp.html"] = site.answers["/docs/stable/distributed.html"] = 500
    with pytest.raises(SiteUnreachable):
        site.pages(url, allow_missing=1)
    source, _ = site.pages(url, allow_missing=2)
    assert len(source.stale) == 2

import pytest
from bs4 import BeautifulSoup

from skill_builder.corpus.markdown import Converter, absolute, language
from skill_builder.corpus.tidy import tidy_article
from tests.cases import read_cases

URL = "https://docs.pytorch.org/docs/stable/notes/page.html"
CASES = read_cases("markdown.txt")


@pytest.mark.parametrize(("html", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_case(html, expected):
    article = BeautifulSoup(tidy_article(f"<article class='bd-article'>{html}</article>"), "lxml").article
    assert Converter(URL).to_markdown(article) == expected


def test_a_link_to_another_scheme_or_nowhere_is_none():
    assert absolute(URL, "mailto:a@b.c") is None
    assert absolute(URL, "file:///etc/passwd") is None
    assert absolute(URL, "http://[broken") is None
    assert absolute(URL, "[https://a.b](https://a.b)") is None


def test_spaces_and_brackets_cannot_end_a_link():
    assert absolute(URL, "https://a.b/c d)[e]") == "https://a.b/c%20d%29%5Be%5D"


def test_declared_language_wins():
    assert language("import torch", "cpp") == "cpp"
    assert language("x", "none") == "text"

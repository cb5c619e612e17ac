import pytest
from lxml import html

from skill_builder.corpus.signature import signature
from tests.cases import read_cases

CASES = read_cases("signature.txt")


@pytest.mark.parametrize(("title", "markup", "expected"), CASES, ids=[case[0] for case in CASES])
def test_case(title, markup, expected):
    term = html.fragment_fromstring(f"<dt class='sig'>{markup}</dt>")
    assert signature(term, title.partition(":")[0]) == expected

"""Conversion cases kept as text: title, input and expected output, each closed by a line with one dot."""

from pathlib import Path

FOLDER = Path(__file__).parent


def read_cases(name):
    """The cases of a file as ``(title, input, expected)``."""
    _, *parts = FOLDER.joinpath(name).read_text(encoding="utf-8").split("\n.\n")
    first = FOLDER.joinpath(name).read_text(encoding="utf-8").split("\n.\n")[0]
    titles = [first.rsplit("\n", 1)[-1], *(title.strip() for title in parts[2::3])]
    return list(zip(titles, parts[0::3], parts[1::3], strict=False))

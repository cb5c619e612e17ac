"""An index over a few guides, for skills that the tests make by hand."""

from skill_builder.build import index_all
from skill_builder.corpus.references import References


def guide_index(guides):
    """The text of index.json over guides, name -> text."""
    files = {f"references/{name}": text.encode() for name, text in guides.items()}
    return index_all(References({}, (), (), ()), files, "2.13")

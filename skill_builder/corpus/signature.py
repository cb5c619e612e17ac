"""A documented object's signature -> Python that parses, with annotations and defaults."""

from __future__ import annotations

import ast
import re

from lxml.html import HtmlElement

MAX_LINE = 100
"""Characters; a longer signature gets one line a parameter."""

MAX_ANNOTATION = 160
"""Characters; longer ones are type aliases written out, which tell a reader nothing."""

_DECORATORS = {"static": "staticmethod", "classmethod": "classmethod", "abstractmethod": "abstractmethod"}
_REPR_DEFAULT = re.compile(r"<[^<>]*>")
_BOUND_MODULE = re.compile(r"\btorch\._C\._\w+\.")


def signature(term: HtmlElement, kind: str) -> str:
    """The signature in a ``<dt class="sig">``.

    Args:
        term: The element as Sphinx writes it.
        kind: ``class``, ``function``, ``method``, ``property``, ...

    Returns:
        A stub (``def name(...) -> type: ...``, ``class Name: ...``, ``name: type = value``) that Python's parser takes;
        where it does not, the text as it stands.
    """
    stub = _stub(term, kind)
    return stub if parses_as_python(stub) else _text(term)


def qualified_name(term: HtmlElement) -> str:
    """The object's name with the module or class before it."""
    return "".join(_parts(term, "sig-prename") + _parts(term, "descname"))


def parses_as_python(code: str) -> bool:
    """Whether Python's own parser takes the text."""
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _stub(term: HtmlElement, kind: str) -> str:
    name = " ".join(_parts(term, "descname"))
    details = _parts(term, "property")
    if not _parts(term, "sig-paren"):
        return _attribute(name, details, kind)
    parameters = [_parameter(text) for text in _parts(term, "sig-param")]
    if kind in ("class", "exception"):
        return (
            f"class {name}:\n{_function('__init__', ['self', *parameters], '', '    ')}"
            if parameters
            else (f"class {name}: ...")
        )
    words = " ".join(details).split()
    decorators = "".join(f"@{_DECORATORS[word]}\n" for word in words if word in _DECORATORS)
    returns = _annotation(" ".join(_parts(term, "sig-return-typehint")))
    return decorators + _function(name, parameters, returns, "", "async " if "async" in words else "")


def _function(name: str, parameters: list[str], returns: str, indent: str, keyword: str = "") -> str:
    arrow = f" -> {returns}" if returns else ""
    line = f"{indent}{keyword}def {name}({', '.join(parameters)}){arrow}: ..."
    if len(line) <= MAX_LINE:
        return line
    inner = "".join(f"{indent}    {line}\n" for line in _filled(parameters, MAX_LINE - len(indent) - 4))
    return f"{indent}{keyword}def {name}(\n{inner}{indent}){arrow}: ..."


def _filled(parameters: list[str], width: int) -> list[str]:
    """Parameters in lines, as many in one as fit; a few more in a file leave room for other sections."""
    lines = [""]
    for parameter in parameters:
        longer = f"{lines[-1]} {parameter}," if lines[-1] else f"{parameter},"
        if len(longer) <= width or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(f"{parameter},")
    return lines


def _attribute(name: str, details: list[str], kind: str) -> str:
    annotation = next((text[1:].strip() for text in details if text.startswith(":")), "")
    value = next((text[1:].strip() for text in details if text.startswith("=")), "")
    if kind == "property":
        return f"@property\ndef {name}(self){' -> ' + annotation if annotation else ''}: ..."
    if kind in ("class", "exception"):
        return f"class {name}: ..."
    return name + (f": {annotation}" if annotation else "") + (f" = {_REPR_DEFAULT.sub('...', value)}" if value else "")


def _parameter(text: str) -> str:
    declared, equals, default = text.partition("=")
    name, colon, annotation = declared.partition(":")
    if colon and name == "self":
        declared = name
    elif colon:
        declared = f"{name}: {_annotation(annotation.strip())}{' ' if equals else ''}"
    # A default that is an object's repr is no Python, and what it is cannot be known.
    return declared + equals + _REPR_DEFAULT.sub("...", default)


def _annotation(text: str) -> str:
    """An annotation without the private module of C++-bound classes."""
    text = _BOUND_MODULE.sub("", text)
    return text if len(text) <= MAX_ANNOTATION else "..."


def _parts(term: HtmlElement, name: str) -> list[str]:
    """The texts of the elements of a class."""
    path = f".//*[contains(concat(' ', normalize-space(@class), ' '), ' {name} ')]"
    return [" ".join(element.text_content().split()) for element in term.xpath(path)]


def _text(term: HtmlElement) -> str:
    return " ".join(term.text_content().split())

"""The documentation of the installed torch that the tests render, with the theme of docs.pytorch.org."""

from pathlib import Path

import pytorch_sphinx_theme2
import torch

project = "PyTorch"
version = ".".join(torch.__version__.split(".")[:2])
release = version
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.linkcode",
    "sphinx.ext.mathjax",
    "pytorch_sphinx_theme2",
]
autodoc_inherit_docstrings = False
napoleon_use_ivar = True
html_theme = "pytorch_sphinx_theme2"
html_theme_options = {"navigation_with_keys": False}
html_context = {"theme_variables": pytorch_sphinx_theme2.get_theme_variables()}
templates_path = [str(Path(pytorch_sphinx_theme2.get_html_theme_path(), "templates"))]
# The line under each title, as on the live site; its dates come from git there.
add_last_updated = True
pytorch_sphinx_theme2.get_git_dates = lambda _path: ("Nov 02, 2022", "Jul 10, 2026")


def linkcode_resolve(domain, info):
    if domain != "py" or not info["module"]:
        return None
    return f"https://github.com/pytorch/pytorch/blob/v{release}.0/{info['module'].replace('.', '/')}.py#L42"

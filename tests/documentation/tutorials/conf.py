"""The tutorials that the tests render, with the theme of docs.pytorch.org."""

from pathlib import Path

import pytorch_sphinx_theme2

project = "PyTorch Tutorials"
extensions = ["pytorch_sphinx_theme2"]
html_theme = "pytorch_sphinx_theme2"
html_context = {"theme_variables": pytorch_sphinx_theme2.get_theme_variables()}
templates_path = [str(Path(pytorch_sphinx_theme2.get_html_theme_path(), "templates"))]

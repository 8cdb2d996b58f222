"""Sphinx's settings for the documentation site (``make docs``): the Markdown pages where they lie, so that their links
hold on the site as in the repository, and the API from the docstrings."""

from __future__ import annotations

from typing import List

from sphinx.application import Sphinx

project = "fairseq-ctxgates"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
root_doc = "README"
include_patterns = ["README.md", "docs/**.md", "examples/**.md", "benchmarks/README.md"]
myst_heading_anchors = 3
suppress_warnings = ["myst.xref_missing"]  # links to files of code; tests/system/test_pages.py checks all links

html_theme = "furo"
html_title = "fairseq-ctxgates"
html_additional_pages = {"index": "redirect.html"}
templates_path = ["templates"]

autodoc_member_order = "bysource"
autodoc_typehints = "description"
napoleon_use_rtype = False
napoleon_use_ivar = True  # a field of a named tuple is documented in its class, and once more would be twice

CONTENTS = """
```{toctree}
:hidden:
:caption: Methods
docs/context_gates
docs/documents
docs/relations
docs/rnnsearch_and_smoothing
docs/papers
docs/analyses
docs/options
```
```{toctree}
:hidden:
:caption: Use
docs/installation
docs/fairseq
docs/cluster
docs/reliability
benchmarks/README
```
```{toctree}
:hidden:
:caption: Examples
examples/quickstart/README
docs/results
examples/evidence/README
examples/rcg/README
examples/isg/README
examples/fra/README
examples/car/README
examples/own_mechanism/README
examples/model_card
```
```{toctree}
:hidden:
:caption: Code
docs/architecture
docs/side_streams
docs/decisions
docs/api
```
"""


def add_contents(app: Sphinx, name: str, source: List[str]) -> None:
    """Add the site's table of contents to the README, which GitHub would show as code."""
    if name == root_doc:
        source[0] += CONTENTS


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", add_contents)

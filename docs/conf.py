"""Settings of Sphinx: scripts/docs builds the site from the Markdown pages and from the docstrings."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from sphinx.application import Sphinx

import zerocopy

ROOT = Path(__file__).parents[1]

project = "zerocopy"
copyright = "the authors of zerocopy"
version = release = zerocopy.__version__

# The source folder is that of the repository, so that links between README.md, docs and examples hold.
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**.md", "examples/*.md"]
exclude_patterns = [".*", "build", "dist", "benchmarks", "csrc", "python", "tests"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc"]
myst_heading_anchors = 4  # as GitHub makes them
numpydoc_show_class_members = False  # autodoc lists them
numpydoc_attributes_as_param_list = True
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # signatures have them, and the section of parameters says it in words
autodoc_default_options = {"members": True, "show-inheritance": True}
add_module_names = False

html_theme = "furo"
html_title = f"zerocopy {release}"
html_copy_source = False

# The pages in the order of the site's menu; others come last.
GUIDES = {
    "Start": "README how-it-works recipes examples/README",
    "Notebooks": "notebooks/hdf5 notebooks/lazy notebooks/layer_by_layer notebooks/kept_results notebooks/gds",
    "Problems": "not-faster memory weights-only hazards network-disks settings",
    "Load": "formats lazy numpy hdf5 torchscript export gpu",
    "Save and convert": "saving converting merging",
    "Programs": "patch workers share distributed warm-starts bridges",
    "Look inside": "cli inspecting",
    "Judge": "results benchmarks peers security SECURITY",
    "Reference": "api versions reference/index reference/limits reference/json reference/benchmark-cases "
    "reference/objects reference/attacks reference/differences reference/messages",
    "Project": "DESIGN CONTRIBUTING CHANGELOG",
}
MODULES = (
    *("zerocopy", "zerocopy.numpy", "zerocopy.share", "zerocopy.gds", "zerocopy.jit"),
    *("zerocopy.export", "zerocopy.aoti", "zerocopy.distributed"),
)


def setup(app: Sphinx) -> None:
    """Complete three pages, which a reader of the repository sees without the site's menu and links."""
    app.connect("source-read", complete)


def complete(app: Sphinx, page: str, source: list[str]) -> None:
    """Add the menu to the front page, docstrings to the page of the interface, and links to measured pages."""
    if page == root_doc:
        source[0] += "\n".join(menu(app.env.found_docs))
    elif page == "docs/reference/index":
        source[0] = re.sub(r"`(\w+\.md)`", r"[\1](\1)", source[0])
    elif page == "docs/api":
        source[0] += "\n".join(["```{eval-rst}", *reference(), "```"])


def menu(found: Iterable[str]) -> list[str]:
    """Return the directives that make the site's menu of all pages."""
    sections = {caption: [path_of(name) for name in names.split()] for caption, names in GUIDES.items()}
    listed = {f"/{root_doc}"}.union(*sections.values())
    sections["More"] = sorted({f"/{page}" for page in found} - listed)
    lines = []
    for caption, pages in sections.items():
        lines += ["", "```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```"]
    return lines


def path_of(name: str) -> str:
    """Return the path of a page: in docs, or beside it."""
    return f"/docs/{name}" if (ROOT / "docs" / f"{name}.md").is_file() else f"/{name}"


def reference() -> list[str]:
    """Return the directives that show the docstrings of all public names."""
    lines: list[str] = []
    for name in MODULES:
        module = importlib.import_module(name)
        lines += [name, "=" * len(name), "", f".. automodule:: {name}", "   :no-members:", ""]
        for public in module.__all__:
            lines += directive(module, public)
    return lines


def directive(module: ModuleType, name: str) -> list[str]:
    """Return the directive that shows the docstring of one public name."""
    thing = getattr(module, name)
    if inspect.ismodule(thing):
        return []
    kind = "function"
    if inspect.isclass(thing):
        kind = "exception" if issubclass(thing, BaseException) else "class"
    return [f".. auto{kind}:: {module.__name__}.{name}", ""]

"""Sphinx's side of the site: pictures inside pages, and the reference of the command line.

    ```{picture} shared-read
    Many waiting tuples share one page read.
    ```

puts docs/pictures/shared-read.svg into the page itself, not as an image beside it, so that its
colours follow the reader's choice of light or dark.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any, ClassVar, cast

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import semistream
from site_parts.commands import command_pages

__all__ = ["setup"]

_APART = {"ALGORITHMS", *semistream.errors.__all__, "errors"}
"""Public names that other pages tell of."""
_INNER = ("use_builder", "use_follower")
"""Members that only semistream itself calls."""
_PROJECT = {
    "project/contributing": "CONTRIBUTING.md",
    "project/security": "SECURITY.md",
    "project/changes": "CHANGELOG.md",
}
"""Pages of the site that are files in the root of the repository."""
_PICTURES = Path(__file__).parents[1] / "pictures"


class Picture(SphinxDirective):
    """An SVG of docs/pictures, inside the page, with the text below it."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        """The figure."""
        path = _PICTURES / f"{self.arguments[0]}.svg"
        self.env.note_dependency(str(path))
        if not path.is_file():
            raise self.error(f"There is no picture {path}. Run `make pictures`.")
        figure = nodes.figure(classes=["picture"])
        svg = path.read_text("utf-8").partition("<svg")
        figure += nodes.raw("", svg[1] + svg[2], format="html")
        if self.content:
            caption = nodes.caption()
            inline, messages = self.state.inline_text(" ".join(self.content), self.lineno)
            caption += inline
            figure += [caption, *messages]
        return [figure]


class CommandLine(SphinxDirective):
    """The commands of `semistream`, each with its arguments and options."""

    option_spec: ClassVar[dict[str, Any]] = {}

    def run(self) -> list[nodes.Node]:
        """A section for each command."""
        self.env.note_dependency(str(Path(__file__).with_name("commands.py")))
        return self.parse_text_to_nodes(command_pages(), allow_section_headings=True)


class Api(SphinxDirective):
    """Public names of semistream, one a line; `:rest:` for all that the page has not named."""

    has_content = True
    option_spec: ClassVar[dict[str, Any]] = {"rest": directives.flag}

    def run(self) -> list[nodes.Node]:
        """What their docstrings say."""
        self.env.note_dependency(__file__)
        told = cast("set[str]", self.env.temp_data.setdefault("semistream_api", set()))
        names = [line.strip() for line in self.content]
        if "rest" in self.options:
            names = [name for name in semistream.__all__ if name not in told | _APART]
        told.update(name.removesuffix("()") for name in names)
        text = "\n".join(map(_documented, names))
        return self.parse_text_to_nodes(f"```{{eval-rst}}\n{text}\n```") if names else []


def _documented(name: str) -> str:
    # With brackets, "Engine()": a class that others make, so what it is made of is not told.
    thing = getattr(semistream, name.removesuffix("()"))
    if inspect.isclass(thing):
        apart = f"   :exclude-members: {', '.join(_INNER)}\n"
        return f".. autoclass:: semistream.{name}\n   :members:\n{apart}"
    return f".. autofunction:: semistream.{name}\n"


class MorePages(SphinxDirective):
    """Those of the named pages that there are; without names, all that are named nowhere."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """A list, and the entries of the sidebar."""
        self.env.note_reread()  # whatever has changed, pages may have come or gone
        wanted = [line.strip() for line in self.content] or self._unnamed()
        entries = "\n".join(f"/{name}" for name in wanted if name in self.env.found_docs)
        return self.parse_text_to_nodes(f"```{{toctree}}\n{entries}\n```") if entries else []

    def _unnamed(self) -> list[str]:
        named = {"index"}
        for path in Path(self.env.srcdir).rglob("*.md"):
            for block in _TOCTREE.findall(path.read_text("utf-8")):
                named.update(Path(line).name for line in block.split())
        return sorted(one for one in self.env.found_docs if "/" not in one and one not in named)


_TOCTREE = re.compile(r"^```\{(?:toctree|more-pages)\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _root_files(app: Sphinx, name: str, source: list[str]) -> None:
    """Fill pages of project/ from files in the root; links to such files lead to these pages."""
    if name in _PROJECT:
        text = (Path(app.srcdir).parent / _PROJECT[name]).read_text("utf-8")
        source[0] = text.replace("](docs/", "](../")
    up = "" if name in _PROJECT else "../" * (name.count("/") + 1)
    source[0] = source[0].replace(f"]({up}examples/notebooks/", "](/notebooks/")
    pages = {file: f"/{page}.md" for page, file in _PROJECT.items()} | {"README.md": "/index.md"}
    for file, page in pages.items():
        source[0] = re.sub(rf"\]\({re.escape(up + file)}(#[\w-]+)?\)", f"]({page})", source[0])


def _notebooks(app: Sphinx, _: object) -> None:
    """Copy examples/notebooks into the site's folder, with links that lead from there."""
    home = Path(app.srcdir) / "notebooks"
    home.mkdir(exist_ok=True)
    given = {path.name: path for path in (home.parents[1] / "examples/notebooks").glob("*.ipynb")}
    for old in home.iterdir():
        if old.name not in given:
            old.unlink()
    for name, path in given.items():
        text = path.read_text("utf-8").replace("](../../docs/", "](../")
        copy = home / name
        if not copy.exists() or copy.read_text("utf-8") != text:
            copy.write_text(text, "utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Tell Sphinx of the directives."""
    app.add_directive("picture", Picture)
    app.add_directive("command-line", CommandLine)
    app.add_directive("api", Api)
    app.add_directive("more-pages", MorePages)
    app.connect("config-inited", _notebooks)
    app.connect("source-read", _root_files)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

"""Sphinx's side of the site: pictures inside pages, and the reference of the command line.

    ```{picture} shared-read
    Many waiting tuples share one page read.
    ```

puts docs/pictures/shared-read.svg into the page itself, not as an image beside it, so that its
colours follow the reader's choice of light or dark.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from site_parts.commands import command_pages

__all__ = ["setup"]

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


def setup(app: Sphinx) -> dict[str, bool]:
    """Tell Sphinx of the directives."""
    app.add_directive("picture", Picture)
    app.add_directive("command-line", CommandLine)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

"""The examples of a page: found in its Markdown, and run in their order.

- `python` blocks run, in one namespace. What they print must be what the block after them says, if
  that is a `text` block; without one they print nothing.
- `console` blocks run too: each line that begins with "$ " is a command, the lines after it are
  what it prints. Without such lines, any output will do.
- `toml` blocks whose first line is a comment with a file's name, "# pipeline.toml", become files.
- What a reader need not see is in a comment: `<!-- python`, code, `-->`.
- A block after `<!-- not run: the reason -->` is left out; after `<!-- any output -->` it runs, and
  what it prints does not matter.

"..." stands for anything, as in doctests. Other languages, `sh` among them, are for reading.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ROOT", "Example", "examples", "own_process", "pages_with_examples", "run"]

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(
    r"^<!-- (?P<hidden>python)\n(?P<code>.*?)^-->$"
    r"|^(?P<skip><!-- not run: [^\n]+ -->\n+)?(?P<any><!-- any output -->\n+)?"
    r"^```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_FILE = re.compile(r"# ([\w-]+\.toml)\n")
_COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


@dataclass(frozen=True)
class Example:
    """A block that runs, and what it should print; None if that does not matter."""

    language: str
    text: str
    expected: str | None
    line: int


def examples(page: Path) -> list[Example]:
    """The blocks of a page that run."""
    text = page.read_text("utf-8")
    found = list(_BLOCK.finditer(text))
    return [
        Example(
            one["hidden"] or one["language"],
            one["code"] or one["text"],
            _expected(text, found, number),
            text.count("\n", 0, one.start("code") if one["hidden"] else one.start("text")),
        )
        for number, one in enumerate(found)
        if one["hidden"] or (one["language"] in ("python", "console", "toml") and not one["skip"])
    ]


def _expected(text: str, found: list[re.Match[str]], number: int) -> str | None:
    """What stands directly after a block, apart from blank lines."""
    if found[number]["hidden"] or found[number]["any"]:
        return None
    following = found[number + 1] if number + 1 < len(found) else None
    if following is None or following["language"] != "text":
        return ""
    between = text[found[number].end() : following.start()]
    return "" if between.strip() else following["text"]


def pages_with_examples() -> list[Path]:
    """The README and all pages that have Python or commands to run."""
    pages = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
    return [page for page in pages if any(one.language != "toml" for one in examples(page))]


def own_process(page: Path) -> bool:
    """Whether Spark itself writes files: it takes paths from where it was started."""
    return any("writeStream" in one.text for one in examples(page))


def run(page: Path, folder: Path) -> None:
    """Run all of a page's examples in a folder, which is the current one."""
    namespace: dict[str, object] = {}
    for example in examples(page):
        where = f"{page.name}, line {example.line}"
        if example.language == "toml":
            named = _FILE.match(example.text)
            if named:
                (folder / named[1]).write_text(example.text, "utf-8")
        elif example.language == "console":
            for command, expected in _commands(example.text):
                _compare(_output(command, folder, where), expected or None, where)
        else:
            printed = io.StringIO()
            # Lines before the code make those of an error be the page's.
            code = compile("\n" * example.line + example.text, str(page), "exec")
            with contextlib.redirect_stdout(printed):
                exec(code, namespace)
            _compare(printed.getvalue(), example.expected, where)


def _commands(text: str) -> Iterator[tuple[str, str]]:
    for found in _COMMAND.finditer(text):
        yield found[1], found[2]


def _output(command: str, folder: Path, where: str) -> str:
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=os.environ | {"PATH": tools, "COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, f"{where}: {command}\n{done.stdout}{done.stderr}"
    return done.stdout


def _compare(printed: str, expected: str | None, where: str) -> None:
    if expected is None:
        return
    same = doctest.OutputChecker().check_output(expected, printed, doctest.ELLIPSIS)
    assert same, f"{where} should print\n{expected}\nand printed\n{printed}"


if __name__ == "__main__":
    run(Path(sys.argv[1]), Path.cwd())

"""The command `semistream`: what it prints, and with which code it ends."""

import platform
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

import semistream as ss
from semistream import cli, workload
from semistream.cli import compare
from semistream.relation import IO_MODES

SOURCE = Path(cli.__file__).parents[2]
SMALL = ["compare", "--products", "2000", "--sales", "5000", "--share", "2"]
ONE = [*SMALL, "--algorithms", "hybridjoin"]
HEAVY = {"numba", "pyarrow", "numpy", "pandas", "pyspark", "matplotlib", "semistream_papers"}

Invoke = Callable[..., Result]


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the command makes its temporary ones."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def run(temporary: Path) -> Invoke:
    def invoke(*arguments: str) -> Result:
        # A terminal's width must not decide what a test sees.
        return CliRunner(env={"COLUMNS": "80", "FORCE_COLOR": None}).invoke(cli.app, arguments)

    return invoke


def table_rows(output: str) -> dict[str, list[str]]:
    """Algorithm → the cells of its row."""
    rows = (re.split(r"\s{2,}", line.strip()) for line in output.splitlines())
    return {cells[0].split(" ")[0]: cells for cells in rows if len(cells) == 5}


def test_compare_compares_every_algorithm(run: Invoke, temporary: Path) -> None:
    result = run(*SMALL)
    assert result.exit_code == 0, result.output
    rows = table_rows(result.stdout)
    assert tuple(name for name in rows if name in ss.ALGORITHMS) == ss.ALGORITHMS
    for name in ss.ALGORITHMS:
        _, rate, pages, peak, p99 = rows[name]
        assert float(rate.replace(",", "")) > 0
        assert float(pages.replace(",", "")) > 0
        found = re.fullmatch(r"([\d.]+) of ([\d.]+) MiB", peak)
        assert found is not None
        used, budget = found.groups()
        assert float(used) <= float(budget)
        assert re.fullmatch(r"[\d.,]+ m?s", p99)
    assert list(temporary.iterdir()) == []


def test_compare_says_what_it_joins_and_what_to_read_from_it(run: Invoke) -> None:
    result = run(*SMALL, "--exponent", "0.5")
    lines = result.stdout.splitlines()
    assert lines[0].startswith("R: 2,000 products, 0.2 MiB; S: 5,000 Zipf(0.5) sales; budget: ")
    assert lines[0].endswith("(200 %)")
    assert "Kernels are warmed" in result.stdout
    assert re.fullmatch(r"\w+ is fastest, [\d.,]+ times inlj: .*", lines[-1])


def test_compare_is_plain_and_narrow_without_a_terminal(run: Invoke) -> None:
    result = run(*SMALL)
    assert "\x1b" not in result.output
    assert "\r" not in result.output
    assert max(map(len, result.output.splitlines())) <= 80
    assert result.stderr == ""


def test_inlj_gets_a_share_of_a_long_stream_and_its_row_says_so(
    run: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "_INLJ_ROWS", 1000)
    result = run(*SMALL, "--algorithms", "inlj,hybridjoin")
    assert "inlj (1,000 sales)" in result.stdout


def test_one_algorithm_has_nobody_to_compare_with(run: Invoke) -> None:
    result = run(*ONE)
    assert "hybridjoin shared each page read among" in result.stdout
    assert list(table_rows(result.stdout)) == ["algorithm", "hybridjoin"]


def test_the_slowest_is_compared_with_when_inlj_did_not_run(run: Invoke) -> None:
    result = run(*SMALL, "--algorithms", "hybridjoin, meshjoin,hybridjoin")
    verdict = result.stdout.splitlines()[-1]
    assert sorted(re.findall(r"hybridjoin|meshjoin", verdict)) == ["hybridjoin", "meshjoin"]


def test_direct_reads(run: Invoke) -> None:
    result = run(*ONE, "--io", "direct")
    if result.exit_code and "direct" in result.stderr:
        pytest.skip("this file system refuses direct reads")
    assert "past the page cache" in " ".join(result.stdout.split())


def test_io_names_are_the_library_s() -> None:
    assert tuple(io.value for io in compare.Io) == IO_MODES


def test_keep_keeps_the_master(run: Invoke, tmp_path: Path) -> None:
    kept = tmp_path / "kept.master"
    result = run(*ONE, "--seed", "3", "--keep", str(kept))
    assert result.exit_code == 0, result.output
    assert f"semistream master describe {kept}" in result.stdout
    assert ss.MasterTable.open(kept).row_count == 2000
    again = run(*ONE, "--keep", str(kept))
    assert again.exit_code == 1
    assert "already holds a master table" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--algorithms", "nestjoin"], "'nestjoin' is not known. Choose from: inlj,"),
        (["--algorithms", ""], "'' is not known"),
        (["--share", "0.0001"], "Here --share sets it"),
    ],
)
def test_an_error_is_one_line_and_exit_code_1(
    run: Invoke, temporary: Path, arguments: list[str], message: str
) -> None:
    result = run(*SMALL, *arguments)
    assert result.exit_code == 1
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert "Traceback" not in result.output
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("arguments", [["--products", "0"], ["--io", "fast"], ["--seed", "-1"]])
def test_a_bad_option_ends_with_the_code_for_usage(run: Invoke, arguments: list[str]) -> None:
    assert run("compare", *arguments).exit_code == 2


def test_any_end_removes_the_temporary_folder(
    run: Invoke, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> NoReturn:
        assert list(temporary.iterdir()) != []
        raise RuntimeError("a defect")

    monkeypatch.setattr(compare, "_measure", broken)
    result = run(*SMALL)
    assert isinstance(result.exception, RuntimeError)
    assert list(temporary.iterdir()) == []


def test_interruption_ends_with_130_and_removes_the_temporary_folder(tmp_path: Path) -> None:
    # Whoever runs the tests in the background may have SIGINT ignored, and children inherit that.
    program = (
        "import signal, sys, tempfile\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "tempfile.tempdir = sys.argv.pop()\n"
        "from semistream.cli import app\n"
        "app()\n"
    )
    arguments = ["compare", "--products", "20000", "--share", "1", "--algorithms", "inlj"]
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", program, *arguments, str(tmp_path)],
        env={"PYTHONPATH": str(SOURCE), "COLUMNS": "80"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("R: 20,000 products")
    process.send_signal(signal.SIGINT)
    _, complaints = process.communicate()
    assert process.returncode == 130
    assert complaints == "Interrupted.\n"
    assert list(tmp_path.iterdir()) == []


def test_master_describe(run: Invoke, tmp_path: Path) -> None:
    master = ss.MasterTable.from_arrow(
        workload.products(10, seed=1), tmp_path / "p.master", key="product_id"
    )
    result = run("master", "describe", str(master.path))
    assert result.exit_code == 0
    assert result.stdout == master.describe() + "\n"


def test_master_describe_without_a_master(run: Invoke, tmp_path: Path) -> None:
    result = run("master", "describe", str(tmp_path / "nothing"))
    assert result.exit_code == 1
    assert result.stderr.startswith("There is no master table at ")
    assert len(result.stderr.splitlines()) == 1


def test_version(run: Invoke) -> None:
    result = run("--version")
    assert result.exit_code == 0
    own, others = result.stdout.splitlines()
    assert own == f"semistream {ss.__version__}"
    assert others.startswith(f"Python {platform.python_version()}, pyspark ")
    assert f", pyarrow {pa.__version__}, " in others


def imported(program: str) -> set[str]:
    """The heavy packages that a fresh interpreter has imported after `program`."""
    ask = f"{program}\nimport sys\nprint(*({HEAVY!r} & set(sys.modules)))"
    run = subprocess.run(
        [sys.executable, "-c", ask],
        env={"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(run.stdout.split())


def test_an_interruption_while_it_is_imported_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "pyarrow.py").write_text("raise KeyboardInterrupt")
    run = subprocess.run(
        [sys.executable, "-c", "from semistream_command import main; main()"],
        env={"PYTHONPATH": f"{tmp_path}:{SOURCE}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stderr) == (130, "Interrupted.\n")


def test_an_interruption_of_any_command_is_one_line(
    run: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    # As if it came while the command imports what it needs.
    monkeypatch.setattr("typer.core.TyperCommand.invoke", interrupt)
    result = run(*ONE)
    assert (result.exit_code, result.stderr) == (130, "Interrupted.\n")


def test_the_command_line_itself_imports_nothing_heavy() -> None:
    # A bare parent package stands in for semistream, whose own imports are tested below.
    program = (
        "import sys, types\n"
        "parent = sys.modules['semistream'] = types.ModuleType('semistream')\n"
        f"parent.__path__ = [{str(SOURCE / 'semistream')!r}]\n"
        "import semistream.cli"
    )
    assert imported(program) == set()

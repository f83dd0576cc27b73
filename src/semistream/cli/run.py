"""`semistream run`: a pipeline from a file."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console

from semistream.cli.batch_view import BatchView, MetricsTail, View, totals
from semistream.cli.frames import naming_log, spark_errors, spark_session
from semistream.cli.pipeline_check import check_pipeline
from semistream.cli.pipeline_file import PipelineFile
from semistream.cli.pipeline_parts import pipeline_of
from semistream.cli.report import output, reported, side
from semistream.cli.watch import Host, PortNumber, served
from semistream.errors import SparkLostError

if TYPE_CHECKING:
    from semistream.spark.pipeline.pipeline import Pipeline, Status

__all__ = ["follow", "log_file", "run", "stopped_by_signals"]

_LOOK_SECONDS: Final = 0.2


def run(
    file: Annotated[Path, typer.Argument(metavar="PIPELINE.TOML", help="What to run.")],
    once: Annotated[
        bool, typer.Option("--once", help="Process what the source has now, then stop.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Say what is wrong with file and masters, then stop.")
    ] = False,
    page: Annotated[
        bool, typer.Option("--page", help="Show the pipeline on a page for the browser, too.")
    ] = False,
    host: Host = "127.0.0.1",
    port: PortNumber = 0,
) -> None:
    """Run a pipeline from a file until Ctrl-C; run it again to continue where it stopped."""
    console = side()
    with reported(console), tempfile.TemporaryDirectory(prefix="semistream-") as folder:
        asked = PipelineFile.read(file)
        metrics = Path(asked.pipeline.metrics or Path(folder) / "metrics.jsonl")
        check_pipeline(asked)
        if check:
            output().print("Nothing is wrong as far as that can be seen without Spark.")
            return
        _check_free(asked.pipeline.checkpoint)
        log = log_file(asked.pipeline.log, asked.pipeline.checkpoint)
        with naming_log(log), spark_errors(str(file)):
            spark = spark_session(log=log, connectors=asked.connectors, **asked.settings)
            pipeline = pipeline_of(asked, spark, metrics, once)
            with _page(asked.pipeline.checkpoint, host, port, console) if page else nullcontext():
                was_stopped = follow(pipeline, console)
        output().print(totals(pipeline.status()))
        if was_stopped:
            console.print(f"Stopped. To go on: semistream run {file}", soft_wrap=True)


@contextmanager
def _page(checkpoint: str, host: str, port: int, console: Console) -> Iterator[None]:
    """The page of a pipeline that is about to start."""
    from semistream.relation.storage import is_uri

    if not is_uri(checkpoint):
        Path(checkpoint).mkdir(parents=True, exist_ok=True)
    with served(checkpoint, None, host, port, console):
        yield


def _check_free(checkpoint: str) -> None:
    """Raise if a pipeline of this machine uses the checkpoint; Spark takes seconds to start."""
    from semistream.relation.storage import is_uri
    from semistream.spark.pipeline.lease import check_free

    if not is_uri(checkpoint):
        check_free(Path(checkpoint) / "semistream")


def log_file(asked: str | None, checkpoint: str | None) -> Path:
    """Where the messages of Spark go: not to the terminal, where they would drown ours."""
    from semistream.relation.storage import is_uri

    if asked is not None:
        log = Path(asked)
    elif checkpoint is None or is_uri(checkpoint):
        log = Path(tempfile.gettempdir()) / f"semistream-{os.getpid()}.log"
    else:
        log = Path(checkpoint) / "semistream" / "spark.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    return log.absolute()


def follow(
    pipeline: Pipeline,
    console: Console,
    is_enough: Callable[[Status], bool] = lambda _: False,
    view: View | None = None,
) -> bool:
    """Start a pipeline and show its batches until it ends or `is_enough`; True after a signal.

    The pipeline has `metrics`. By default each batch is a line.
    """
    assert pipeline.metrics_file is not None
    tail, view = MetricsTail(pipeline.metrics_file), view or BatchView(console)
    with stopped_by_signals() as signalled, view.following(pipeline, "Ctrl-C stops."):
        try:
            pipeline.start()
            while not pipeline.await_termination(_LOOK_SECONDS):
                for line in tail.new():
                    view.show(line)
                if signalled.is_set() or is_enough(pipeline.status()):
                    pipeline.stop()
                    break
        except SparkLostError:
            # Java gets the signal too if it goes to all processes, as when a service is stopped.
            if not signalled.is_set():
                raise
        for line in tail.new():
            view.show(line)
    return signalled.is_set()


@contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """While open, Ctrl-C and SIGTERM only set the event; a second signal interrupts.

    Spark's own handler of Ctrl-C cancels all jobs, which would look like a failure. And an
    exception while a line is being printed would print that line twice.
    """
    signalled = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield signalled
        return

    def note(number: int, _: object) -> None:
        signalled.set()
        signal.signal(number, signal.default_int_handler)

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield signalled
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

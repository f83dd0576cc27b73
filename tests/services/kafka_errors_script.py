"""Pipelines that fail, in one session; prints what each has said, as JSON.

python kafka_errors_script.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from semistream.cli.frames import spark_session
from semistream.cli.pipeline_file import PipelineFile
from semistream.cli.pipeline_parts import pipeline_of
from semistream.errors import SemistreamError
from tests.services.conftest import Topics, where
from tests.services.kafka_sales import as_json, master, pipeline_file, postgres_sink, sales
from tests.services.service import free_port


def main(folder: Path) -> None:
    """Try one mistake after the other."""
    master(folder)
    topics = Topics(where("KAFKA"))
    names = [topics.new(), topics.new()]
    for name in names:
        topics.send(name, as_json(sales(name, 100)))
    file = pipeline_file(folder, topics.server, ",".join(names))
    asked = PipelineFile.read(file)
    spark = spark_session(folder / "spark.log", asked.connectors, **asked.settings)

    def attempt(file: Path) -> str:
        asked = PipelineFile.read(file)
        try:
            pipeline = pipeline_of(asked, spark, folder / "metrics.jsonl", once=True)
            pipeline.start().await_termination()
        except SemistreamError as error:
            return str(error)
        return ""

    said: dict[str, object] = {"topics": names, "begun": attempt(file)}
    topics.delete(names[1])
    topics.send(names[0], as_json(sales("later", 50)))
    said["deleted"] = attempt(file)
    topics.new(name=names[1])
    said["made anew"] = attempt(file)
    text = file.read_text()
    file.write_text(text.replace("subscribe =", 'failOnDataLoss = "false"\nsubscribe ='))
    said["went on"] = attempt(file)
    other = folder / "other"
    other.mkdir()
    master(other)
    server = f"127.0.0.1:{free_port()}"
    said["no broker"] = attempt(pipeline_file(other, server, "nowhere"))
    sink = postgres_sink("sales")
    said["password"] = attempt(pipeline_file(other, topics.server, "nowhere", sink=sink))
    print(json.dumps(said))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

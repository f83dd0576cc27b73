"""Pipeline files: what is wrong with one is said in a line, before Spark is started."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from semistream import cli
from semistream.cli.pipeline_file import PipelineFile, SampleTable
from semistream.cli.step_tables import SurrogateKeys
from semistream.errors import PipelineFileError

EXAMPLE = Path(__file__).parents[2] / "examples" / "pipeline.toml"
LEAST = {
    "source": 'format = "rate"',
    "master": 'path = "m"',
    "join": 'on = "id"\nmemory = "1MB"',
    "sink": 'path = "out"',
    "pipeline": 'checkpoint = "c"',
}

Read = Callable[..., PipelineFile]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def written(**tables: str | None) -> PipelineFile:
        text = [
            f"[{name}]\n{body}\n" for name, body in (LEAST | tables).items() if body is not None
        ]
        path = tmp_path / "pipeline.toml"
        path.write_text("".join(text), "utf-8")
        return PipelineFile.read(path)

    return written


def without(text: str, *starts: str) -> str:
    """The lines that do not start so."""
    return "\n".join(line for line in text.splitlines() if not line.startswith(starts))


def test_the_least_that_can_be_given(read: Read) -> None:
    found = read()
    assert found.master is not None
    assert (found.source.format, found.master.path, found.join.on) == ("rate", "m", "id")
    assert (found.join.how, found.join.algorithm, found.join.columns) == ("left", "auto", None)
    assert (found.unmatched, found.rejected, found.deferred) == (None, None, None)


def test_the_example_is_valid_with_what_it_has_commented_out(tmp_path: Path) -> None:
    unmatched = PipelineFile.read(EXAMPLE).unmatched
    assert unmatched is not None
    assert unmatched.retry_options() == {
        "backoff": "30s",
        "deadline": "6h",
        "then": "emit",
    }
    # Each line that is commented out is, but for the Parquet sink's, valid as it stands.
    lines = EXAMPLE.read_text("utf-8").splitlines()
    opened = [line.removeprefix("# ") if " = " in line or "# [" in line else line for line in lines]
    text = "\n".join(opened).replace('path = "warehouse/sales"\n', "")
    path = tmp_path / "all.toml"
    # A master is in a database or in files.
    in_files, in_database = ('path = "products', "cache"), ("database =", 'table = "p', 'key = "p')
    path.write_text(without(text, *in_files), "utf-8")
    master = PipelineFile.read(path).master
    assert master is not None
    assert (master.table, master.key, master.credentials) == ("products", "product_id", "SHOP")
    path.write_text(without(text, *in_database, "credentials"), "utf-8")
    found = PipelineFile.read(path)
    assert (found.sink.format, found.sink.table) == ("delta", "sales")
    assert found.deferred is not None
    assert found.deferred.path == "checkpoints/deferred"
    assert found.settings == {"spark.driver.memory": "4g"}
    assert found.connectors == ["kafka", "delta"]


@pytest.mark.parametrize("on", ['"id"', '["a", "b"]', '{ sale = "id" }'])
def test_keys_in_each_of_their_forms(read: Read, on: str) -> None:
    given = {'"id"': "id", '["a", "b"]': ["a", "b"], '{ sale = "id" }': {"sale": "id"}}
    assert read(join=f"on = {on}\nmemory = 4096").join.on == given[on]


def test_unmatched_as_a_queue_with_dead_letters(read: Read) -> None:
    body = 'retry = true\nthen = "dead_letter"\n[unmatched.dead_letters]\npath = "dead"'
    found = read(unmatched=body).unmatched
    assert found is not None
    assert found.dead_letters is not None
    assert found.dead_letters.path == "dead"
    assert found.retry_options() == {"then": "dead_letter"}


def test_the_example_with_several_masters_is_valid(tmp_path: Path) -> None:
    example = EXAMPLE.with_name("star.toml")
    first, second = PipelineFile.read(example).lookup
    assert (first.how, second.how, second.prefix) == ("inner", "left", "quantity_")
    # So it is with what it has commented out.
    lines = example.read_text("utf-8").splitlines()
    path = tmp_path / "all.toml"
    path.write_text("\n".join(line.removeprefix("# ") if " = " in line else line for line in lines))
    opened = PipelineFile.read(path).lookup[0]
    assert (opened.name, opened.columns) == ("products", ["name", "price"])
    assert opened.max_staleness == "10m"


def test_terms_of_the_join_and_steps(read: Read) -> None:
    terms = '\nwhere = "a > b"\nas_of = ["at", "since"]\ntolerance = "1h"\nsample = { share = 0.1 }'
    step = 'kind = "surrogate_keys"\nkeys = "k"\non = { a = "b" }'
    found = read(join=LEAST["join"] + terms, **{"[step]": step})
    join = found.join
    assert (join.where, join.as_of, join.tolerance) == ("a > b", ["at", "since"], "1h")
    assert join.sample == SampleTable(0.1)
    assert found.step == [SurrogateKeys(kind="surrogate_keys", keys="k", on={"a": "b"})]
    assert read(join=LEAST["join"] + "\nsample = 0.5").join.sample == 0.5


def test_the_steps_in_the_docs_are_valid(read: Read) -> None:
    page = (EXAMPLE.parents[1] / "docs" / "pipeline.md").read_text("utf-8")
    steps = page.partition("```toml\n[[step]]\n")[2].partition("```")[0]
    found = read(**{"[step]": steps}).step
    kinds = [step.kind for step in found]
    assert kinds == ["surrogate_keys", "deduplicate", "select", "where"]


LOOKUP = 'path = "m"\non = "id"'
DATABASE = 'database = "mysql://host/shop"\ntable = "goods"\nkey = "id"'
STAR = {"master": None, "join": 'memory = "1MB"', "[lookup]": LOOKUP}


def test_a_master_in_a_database(read: Read) -> None:
    found = read(master=DATABASE + '\ncredentials = "SHOP"').master
    assert found is not None
    assert (found.database, found.table, found.key) == ("mysql://host/shop", "goods", "id")
    (one,) = read(**STAR | {"[lookup]": DATABASE + '\non = "id"'}).lookup
    assert (one.database, one.on, one.path) == ("mysql://host/shop", "id", None)


def test_the_place_of_a_database_may_be_in_the_environment(
    read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semistream.relation.DatabaseMaster", lambda url, **_: url)
    monkeypatch.setenv("DB_USER", "a/b")
    monkeypatch.setenv("DB_HOST", "h")
    found = read(master=DATABASE.replace("//host", "//${DB_USER}@${DB_HOST}")).master
    assert found is not None
    assert str(found.opened()) == "mysql://a%2Fb@h/shop"


def test_look_ups_instead_of_a_master(read: Read) -> None:
    second = (
        '\n[[lookup]]\npath = "n"\non = { a = "b" }\nhow = "left"\nprefix = "n_"\nname = "other"'
    )
    found = read(**STAR | {"[lookup]": LOOKUP + second})
    assert found.master is None
    one, other = found.lookup
    assert (one.path, one.on, one.how, one.columns) == ("m", "id", "inner", None)
    assert (other.on, other.how, other.prefix, other.name) == ({"a": "b"}, "left", "n_", "other")


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"sinc": ""}, r"no table \[sinc\]. Known are: .*\[master\], \[join\]"),
        ({"join": None, "sink": None}, r"Missing: \[join\], \[sink\]"),
        ({"join": 'on = "id"'}, r"\[join\] is missing: memory\."),
        (
            {"join": LEAST["join"] + "\nmemroy = 1"},
            r"\[join\] has no key memroy. Known are: on, me",
        ),
        ({"join": 'on = 3\nmemory = "1MB"'}, "join.on is 3; give a string or a list of strings or"),
        ({"join": "on = [1]\nmemory = 1"}, r"join.on is \[1\]; give a string or a list of strings"),
        ({"join": 'on = "id"\nmemory = true'}, "join.memory is True; give a whole number or a st"),
        ({"source": 'format = "rate"\nselect = "id"'}, "source.select is 'id'; give a list of s"),
        ({"sink": ""}, r"\[sink\] needs a path or a table, and only one"),
        ({"sink": 'path = "a"\ntable = "b"\nformat = "delta"'}, r"\[sink\] needs a path or a tab"),
        ({"sink": 'path = "a"\nformat = "csv"'}, "'csv', which cannot take a batch exactly once"),
        ({"sink": 'table = "t"'}, r"\[sink\] has table, which a sink with format"),
        ({"sink": 'path="a"\nformat="delta"\nbatch_column="b"'}, "batch_column, which a sink with"),
        ({"unmatched": 'retry = true\npath = "u"'}, "retry = true and a place to write to"),
        ({"unmatched": 'deadline = "1h"'}, "add retry = true"),
        ({"sink": 'format = "kafka"\ntopic = "t"'}, r"\[sink\] is missing: options"),
        ({"sink": 'format = "mariadb"\ntable = "t"'}, r"\[sink\] is missing: url"),
        ({"sink": 'format = "iceberg"\npath = "t"'}, r"\[sink\] is missing: table"),
        ({"unmatched": "retry = false"}, r"\[unmatched\] needs a path"),
        (
            {"unmatched": 'retry = true\n[unmatched.dead_letters]\npaht = "d"'},
            r"\[unmatched.dead_letters\] has no key paht. Known are: path, format",
        ),
        ({"rejected": 'path = "r"\nchecks = { a = 1 }'}, "rejected.checks.a is 1; give a string"),
        ({"spark": '"spark.x" = 4'}, 'spark."spark.x" is 4; give a string or .*: "4"'),
        (
            {"sink": 'format = "mariadb"\ntable = "t"\nurl = "postgresql://h/d"'},
            r'\[sink\] has format = "mariadb", and its url is one of postgresql. Write',
        ),
        ({"deferred": ""}, r"\[deferred\] is missing: path"),
        ({"pipeline": ""}, r"\[pipeline\] is missing: checkpoint"),
        ({"master": "path = "}, "is not TOML: Invalid value"),
        ({"master": None}, r"Missing: \[master\]"),
        ({"master": ""}, r"\[master\] is missing: path"),
        ({"master": 'database = "mysql://h/d"\nkey = "id"'}, r"\[master\] is missing: table"),
        ({"master": DATABASE + '\npath = "m"'}, r"\[master\] has a database and a path"),
        ({"master": 'path = "m"\ntable = "t"'}, r"\[master\] has table, .* go with database"),
        ({"join": "memory = 1"}, r"\[join\] is missing: on\."),
        (STAR | {"master": 'path = "m"'}, r"\[master\] and \[\[lookup\]\] both name masters"),
        (STAR | {"join": LEAST["join"]}, r"\[join\] has keys beside memory"),
        (STAR | {"[lookup]": 'path = "m"'}, r"\[lookup 1\] is missing: on\."),
        (STAR | {"[lookup]": LOOKUP + "\nmemory = 1"}, r"\[lookup 1\] has no key memory"),
        (
            {"[step]": 'kind = "dedup"'},
            r"\[step 1\] has kind = 'dedup'. Known kinds are: surrogate",
        ),
        ({"[step]": 'path = "m"'}, r"\[step 1\] is missing: kind. Known kinds are: surrogate_keys"),
        ({"[step]": 'kind = "deduplicate"'}, r"\[step 1\] is missing: master, on"),
        (
            {"[step]": 'kind = "split_new"\nmaster = "m"\non = "id"\ncompair = ["a"]'},
            r"\[step 1\] has no key compair. Known are: kind, master, on, memory, io, compare",
        ),
        ({"[step]": 'kind = "where"\npredicate = 1'}, r"step 1.predicate is 1; give a string"),
        ({"step": 'kind = "where"'}, r"step is no list of tables. Write each as \[\[step\]\]"),
        ({"join": LEAST["join"] + '\nsample = "all"'}, "join.sample is 'all'; give a whole number"),
        (
            {"join": LEAST["join"] + "\nsample = { part = 0.1 }"},
            r"\[join.sample\] has no key part. Known are: share, seed, by",
        ),
        (
            STAR | {"join": 'memory = 1\nwhere = "a > b"'},
            r"\[join\] has keys beside memory and sam",
        ),
        ({"lookup": LOOKUP}, r"lookup is no list of tables. Write each as \[\[lookup\]\]"),
    ],
)
def test_what_is_wrong_is_told(read: Read, tables: dict[str, str | None], message: str) -> None:
    with pytest.raises(PipelineFileError, match=message):
        read(**tables)


@pytest.mark.parametrize("text", [None, "[join]\nmemroy = 1\n"])
def test_the_command_ends_with_one_line(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "p.toml"
    if text is not None:
        path.write_text(text, "utf-8")
    result = CliRunner().invoke(cli.app, ["run", str(path)])
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith(str(path))

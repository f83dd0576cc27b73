"""What can be known of examples/compose without Docker."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from semistream.cli.pipeline_file import PipelineFile

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "compose"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text("utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]
CONDITIONS = {"service_healthy", "service_completed_successfully"}


def test_the_services() -> None:
    assert set(SERVICES) == {"kafka", "postgres", "prepare", "producer", "pipeline"}
    assert all("image" in service for service in SERVICES.values())


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_waits_for_services_that_can_tell(name: str) -> None:
    for other, wait in SERVICES[name].get("depends_on", {}).items():
        assert wait["condition"] in CONDITIONS
        healthy = wait["condition"] == "service_healthy"
        assert ("healthcheck" in SERVICES[other]) is healthy


def test_ports_are_open_on_loopback_only() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert sorted(ports) == ["127.0.0.1:5432:5432", "127.0.0.1:9092:9092"]


def test_the_pipeline_has_the_variables_that_its_file_names() -> None:
    text = (FOLDER / "pipeline.toml").read_text("utf-8")
    named = set(re.findall(r"\$\{(\w+)\}", text))
    assert named == {"KAFKA", "SHOP_HOST", "SHOP_PORT", "SHOP_USER", "SHOP_PASSWORD"}
    assert set(SERVICES["pipeline"]["environment"]) == named


def test_both_sides_have_the_same_addresses_and_password() -> None:
    pipeline, database = SERVICES["pipeline"]["environment"], SERVICES["postgres"]["environment"]
    assert pipeline["SHOP_PASSWORD"] == database["POSTGRES_PASSWORD"]
    assert pipeline["SHOP_USER"] == database["POSTGRES_USER"]
    assert (pipeline["SHOP_HOST"], pipeline["SHOP_PORT"]) == ("postgres", "5432")
    advertised = SERVICES["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    for name in ("prepare", "producer", "pipeline"):
        assert f"INSIDE://{SERVICES[name]['environment']['KAFKA']}," in advertised


def test_volumes_are_declared_or_files_that_exist() -> None:
    mounted = [one.split(":")[0] for each in SERVICES.values() for one in each.get("volumes", [])]
    assert {one for one in mounted if "/" not in one} == set(COMPOSE["volumes"])
    assert all((FOLDER / one).is_file() for one in mounted if "/" in one)


def test_master_and_checkpoint_are_on_the_shared_volume() -> None:
    image = (FOLDER / "Dockerfile").read_text("utf-8")
    assert re.findall(r"^WORKDIR (.*)", image, re.MULTILINE)[-1] == "/data"
    assert SERVICES["prepare"]["volumes"] == SERVICES["pipeline"]["volumes"] == ["data:/data"]


def test_the_image_copies_files_that_exist_and_runs_them() -> None:
    image = (FOLDER / "Dockerfile").read_text("utf-8")
    copied = [shlex.split(line)[1:] for line in re.findall(r"^COPY .*", image, re.MULTILINE)]
    for *sources, _ in copied:
        assert all((ROOT / source).exists() for source in sources)
    into_shop = {f"/shop/{Path(one).name}" for one in copied[-1][:-1]}
    run = {word for one in SERVICES.values() for word in one.get("command", []) if "/shop/" in word}
    assert run == into_shop
    let_in = re.findall(r"^!(.*)", (FOLDER / "Dockerfile.dockerignore").read_text("utf-8"), re.M)
    assert all(one.startswith(tuple(let_in)) for *sources, _ in copied for one in sources)


def test_the_pipeline_file_is_well_formed() -> None:
    asked = PipelineFile.read(FOLDER / "pipeline.toml")
    assert asked.source.options["subscribe"] in (FOLDER / "producer.py").read_text("utf-8")
    assert f"CREATE TABLE {asked.sink.table} " in (FOLDER / "tables.sql").read_text("utf-8")

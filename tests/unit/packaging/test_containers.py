"""Dockerfile and docker-compose.yml, as far as they can be checked without an engine."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
TOOLS = Path(sys.executable).parent
COMPOSE = ROOT / "docker-compose.yml"
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
PARTS = {"collector": "collect", "producer": "push", "worker": "work", "status": "status", "sim": "sim"}


def defaults(text: str) -> str:
    """What Compose makes of `${NAME:-default}` in an empty environment."""
    return re.sub(r"\$\{[A-Z_]+:-([^}]*)\}", r"\1", text)


SERVICES: dict[str, Any] = yaml.safe_load(defaults(COMPOSE.read_text(encoding="utf-8")))["services"]


def test_the_compose_file_follows_the_compose_specification() -> None:
    command = [str(TOOLS / "check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(COMPOSE)]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


def test_hadolint_has_nothing_to_say_about_the_dockerfile() -> None:
    command = [str(TOOLS / "hadolint"), str(ROOT / "Dockerfile")]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


@pytest.mark.parametrize(("service", "verb"), PARTS.items())
def test_every_part_is_one_command_of_the_image(service: str, verb: str) -> None:
    assert SERVICES[service]["image"] == "tokenmill"
    assert SERVICES[service]["command"][0] == verb
    assert 'ENTRYPOINT ["tokenmill"]' in DOCKERFILE


def test_any_service_can_be_scaled() -> None:
    for name, service in SERVICES.items():
        assert "container_name" not in service, name
        assert "ports" not in service, name


def test_stopping_gives_every_part_time_to_settle() -> None:
    assert "STOPSIGNAL SIGTERM" in DOCKERFILE
    for name in ("redis", "collector", "producer", "worker", "sim"):
        assert "stop_grace_period" in SERVICES[name], name


def test_redis_keeps_what_it_is_told() -> None:
    command: list[str] = SERVICES["redis"]["command"]
    assert command[command.index("--appendonly") + 1] == "yes"
    assert command[command.index("--maxmemory-policy") + 1] == "noeviction"
    assert "redis:/data" in SERVICES["redis"]["volumes"]


@pytest.mark.parametrize("service", ["collector", "producer", "worker", "status"])
def test_parts_share_one_redis_one_output_and_the_simulated_server(service: str) -> None:
    command: list[str] = SERVICES[service]["command"]
    overrides = [command[index + 1] for index, word in enumerate(command) if word == "--set"]
    values: dict[str, Any] = tomllib.loads("\n".join(overrides))
    assert values == {"run": {"output": "/out"}, "sglang": {"servers": ["http://sim:30000"]}}
    assert SERVICES[service]["environment"]["TOKENMILL_REDIS_URL"] == "redis://redis:6379/0"


def test_only_the_collector_can_write_the_output() -> None:
    mounts = {name: [v for v in service.get("volumes", []) if ":/out" in v] for name, service in SERVICES.items()}
    assert {name: volumes for name, volumes in mounts.items() if volumes} == {
        "collector": ["output:/out"],
        "status": ["output:/out:ro"],
    }


def test_the_image_runs_as_nobody_in_particular() -> None:
    last_stage = DOCKERFILE.rsplit("\nFROM ", 1)[1]
    (user,) = re.findall(r"^USER (\d+)$", last_stage, flags=re.MULTILINE)
    assert int(user) >= 1000
    assert "HEALTHCHECK" in last_stage


def test_the_image_installs_only_hashed_packages() -> None:
    installs = re.findall(r"pip install ([^\n\\]+)", DOCKERFILE)
    assert installs
    for arguments in installs:
        assert "--require-hashes" in arguments or "--no-deps /tmp/wheel/" in arguments, arguments


def health_program() -> str:
    (program,) = re.findall(r'CMD \["python", "-c", "([^"]+)"\]', DOCKERFILE)
    return program


@pytest.mark.parametrize(("url", "healthy"), [(None, True), ("redis://127.0.0.1:1/0", False)])
def test_the_health_check_tells_whether_redis_answers(url: str | None, healthy: bool) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TOKENMILL_REDIS_URL"}
    if url:
        environment["TOKENMILL_REDIS_URL"] = url
    command = [sys.executable, "-c", health_program()]
    outcome = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert (outcome.returncode == 0) is healthy, outcome.stderr

"""Dockerfile and docker-compose.yml, as far as they can be checked without an engine."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.deploy_support import COMPOSE, DEPLOY, compose, seconds
from tests.e2e_support import ROOT
from workers.simulator.information import VERSION

TOOLS = Path(sys.executable).parent
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
PARTS = {
    "collector": "collect", "producer": "push", "worker": "work", "dashboard": "dashboard", "status": "status",
    "sim": "sim",
}  # fmt: skip
SERVICES: dict[str, Any] = compose()["services"]
SGLANG = [name for name in SERVICES if name.startswith("sglang-")]


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


def test_workers_can_be_scaled_at_any_time() -> None:
    for name in ("worker", "collector", "producer", "redis", "sim", *SGLANG):
        assert not {"container_name", "ports"} & set(SERVICES[name]), name


def test_what_is_published_is_published_on_loopback_alone() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert set(published) == {"dashboard", "prometheus", "grafana"}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)


def test_what_up_starts_is_the_demo_and_profiles_add_the_rest() -> None:
    profiles = {name: service.get("profiles", []) for name, service in SERVICES.items()}
    assert {name for name, found in profiles.items() if not found} == {
        "redis", "collector", "producer", "worker", "dashboard", "sim",
    }  # fmt: skip
    assert [name for name, found in profiles.items() if "monitoring" in found] == ["prometheus", "grafana"]
    for profile, number in (("gpu", 1), ("gpu-2", 2), ("gpu-4", 4), ("gpu-8", 8)):
        assert [name for name in SGLANG if profile in profiles[name]] == SGLANG[:number]


def test_every_sglang_has_a_gpu_of_its_own_and_the_release_that_the_project_is_held_to() -> None:
    for number, name in enumerate(SGLANG):
        service = SERVICES[name]
        (device,) = service["deploy"]["resources"]["reservations"]["devices"]
        assert device == {"driver": "nvidia", "device_ids": [str(number)], "capabilities": ["gpu"]}
        assert service["image"] == f"lmsysorg/sglang:v{VERSION}"
        assert {"shm_size", "healthcheck", "stop_grace_period"} <= set(service)
        assert "models:/cache/huggingface" in service["volumes"]
        assert service["environment"]["HF_HOME"] == "/cache/huggingface"


def test_the_settings_for_gpus_are_ones_that_the_compose_file_has() -> None:
    lines = (DEPLOY / "compose" / "gpu.env").read_text(encoding="utf-8").splitlines()
    settings = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    known = set(re.findall(r"\$\{([A-Z_]+):-", COMPOSE.read_text(encoding="utf-8")))
    assert set(settings) <= known | {"COMPOSE_PROFILES"}
    services = compose(**settings)["services"]
    assert services["sim"]["scale"] == 0
    (servers,) = [word for word in services["worker"]["command"] if word.startswith("sglang.servers=")]
    assert tomllib.loads(servers) == {"sglang": {"servers": ["http://sglang-0:30000"]}}


def test_stopping_gives_every_part_time_to_settle() -> None:
    assert "STOPSIGNAL SIGTERM" in DOCKERFILE
    for name in set(SERVICES) - {"status"}:
        assert "stop_grace_period" in SERVICES[name], name
    # Half the speed that a crowded server gives one request, for the longest answer of the example.
    assert seconds(SERVICES["worker"]["stop_grace_period"]) >= 4096 / 20


def test_servers_are_stopped_after_the_workers_that_drain_into_them() -> None:
    depends: dict[str, Any] = SERVICES["worker"]["depends_on"]
    for name in ("sim", *SGLANG):
        assert depends[name] == {"condition": "service_started", "required": False}


def test_every_container_is_healthy_for_a_reason_and_may_do_little() -> None:
    for name, service in SERVICES.items():
        assert "healthcheck" in service or service["image"] == "tokenmill", name
        assert service["cap_drop"] == ["ALL"] and service["security_opt"] == ["no-new-privileges:true"], name
        assert service.get("read_only") or name in SGLANG, name


def test_redis_keeps_what_it_is_told() -> None:
    command: list[str] = SERVICES["redis"]["command"]
    assert command[command.index("--appendonly") + 1] == "yes"
    assert command[command.index("--maxmemory-policy") + 1] == "noeviction"
    assert "redis:/data" in SERVICES["redis"]["volumes"]


@pytest.mark.parametrize("service", ["collector", "producer", "worker", "dashboard", "status"])
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
        "dashboard": ["output:/out:ro"],
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

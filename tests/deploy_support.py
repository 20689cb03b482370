"""What the tests of docker-compose.yml and of the files in deploy/ read them with."""

import re
import socket
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from tests.e2e_support import ROOT

COMPOSE = ROOT / "docker-compose.yml"
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"


def interpolated(text: str, **environment: str) -> str:
    """What Compose makes of `${NAME:-default}` in this environment."""
    return re.sub(r"\$\{([A-Z_]+):-([^}]*)\}", lambda found: environment.get(found[1]) or found[2], text)


def compose(**environment: str) -> dict[str, Any]:
    """docker-compose.yml as Compose reads it."""
    return yaml.safe_load(interpolated(COMPOSE.read_text(encoding="utf-8"), **environment))


def seconds(duration: str) -> float:
    """Compose's durations, such as 1m30s."""
    units = {"h": 3600, "m": 60, "s": 1}
    return sum(int(number) * units[unit] for number, unit in re.findall(r"(\d+)([hms])", duration))


def kubernetes_files() -> list[Path]:
    return sorted(path for path in KUBERNETES.glob("*.yaml") if path.name != "kustomization.yaml")


def kubernetes_objects() -> list[dict[str, Any]]:
    return [item for path in kubernetes_files() for item in yaml.safe_load_all(path.read_text(encoding="utf-8"))]


def own_address(*ports: int) -> str:
    """A loopback address of this test alone, on which these ports are free: what a container or a node is elsewhere.

    Nothing else uses it, so the ports may be those that the files name.
    """
    random = Random()
    for _ in range(20):
        address = f"127.{random.randrange(64, 250)}.{random.randrange(256)}.{random.randrange(1, 255)}"
        if all(_is_free(address, port) for port in ports):
            return address
    pytest.skip(f"no loopback address has the ports {', '.join(map(str, ports))} free")


def _is_free(address: str, port: int) -> bool:
    try:
        with socket.create_server((address, port)):
            return True
    except OSError:
        return False

"""requirements.lock: whole, hashed, free of anything about where it was made."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[3]
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
DOCUMENT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
DEPENDENCIES: list[str] = DOCUMENT["project"]["dependencies"]
EXTRAS: dict[str, list[str]] = DOCUMENT["project"]["optional-dependencies"]
BUILD: list[str] = DOCUMENT["build-system"]["requires"]


def entries(text: str) -> list[tuple[Requirement, int]]:
    """Each pinned package in a part of the lock, with the number of its hashes."""
    found: list[tuple[Requirement, int]] = []
    for entry in re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE)[1:]:
        head, *rest = entry.replace("\\\n", " ").split(" --hash=")
        found.append((Requirement(head.strip()), len(rest)))
    return found


def sections() -> dict[str, str]:
    parts = re.split(r"^# (runtime|build|development)$", LOCK, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def pins(text: str) -> dict[str, list[str]]:
    versions: dict[str, list[str]] = {}
    for requirement, _ in entries(text):
        versions.setdefault(canonicalize_name(requirement.name), []).append(str(requirement.specifier)[2:])
    return versions


def test_every_package_is_pinned_to_one_version_and_hashed() -> None:
    for requirement, hashes in entries(LOCK):
        assert re.fullmatch(r"==[^,*]+", str(requirement.specifier)), requirement
        assert hashes > 0, requirement


def test_nothing_says_where_packages_come_from() -> None:
    assert "://" not in LOCK
    options = [line for line in LOCK.splitlines() if line.lstrip().startswith("-") and "--hash=sha256:" not in line]
    assert not options


@pytest.mark.parametrize("line", [*DEPENDENCIES, *BUILD, *(line for lines in EXTRAS.values() for line in lines)])
def test_the_lock_holds_what_pyproject_asks_for(line: str) -> None:
    wanted = Requirement(line)
    versions = pins(LOCK).get(canonicalize_name(wanted.name))
    assert versions, f"{wanted.name} is not in requirements.lock: run `make lock`"
    assert all(wanted.specifier.contains(version) for version in versions), f"{wanted}, but {versions}: run `make lock`"


def test_the_container_image_gets_the_runtime_and_no_tools() -> None:
    parts = sections()
    assert list(parts) == ["runtime", "build", "development"]
    runtime, build = pins(parts["runtime"]), pins(parts["build"])
    assert {canonicalize_name(Requirement(line).name) for line in DEPENDENCIES} <= set(runtime)
    assert {canonicalize_name(Requirement(line).name) for line in BUILD} <= set(build)
    assert not {"pytest", "pyright", "ruff", "pyarrow"} & (set(runtime) | set(build))


def test_no_package_is_in_two_sections() -> None:
    names = [name for part in sections().values() for name in pins(part)]
    assert len(names) == len(set(names))


def test_transformers_brings_no_torch() -> None:
    assert not {"torch", "torchvision", "triton", "tensorflow", "jax"} & set(pins(LOCK))

"""The built wheel: all the packages with their types and Lua, and nothing that it takes a checkout to run."""

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("tokenmill", "producer", "workers", "budget", "results")


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def source_files() -> Iterator[str]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(ROOT).as_posix()


def test_every_source_file_is_in_the_wheel_and_nothing_else(unpacked: Path) -> None:
    packed = {path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*") if path.is_file()}
    assert {name for name in packed if ".dist-info/" not in name} == set(source_files())


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_is_typed(unpacked: Path, package: str) -> None:
    assert (unpacked / package / "py.typed").is_file()


def test_lua_scripts_travel_with_the_ledger(unpacked: Path) -> None:
    scripts = {path.name for path in ROOT.joinpath("budget").rglob("*.lua")}
    assert {path.name for path in unpacked.rglob("*.lua")} == scripts


def test_the_wheel_refuses_to_be_uploaded_and_names_its_command(unpacked: Path) -> None:
    (metadata,) = unpacked.glob("tokenmill-*.dist-info/METADATA")
    assert "Classifier: Private :: Do Not Upload" in metadata.read_text(encoding="utf-8").splitlines()
    scripts = (metadata.parent / "entry_points.txt").read_text(encoding="utf-8")
    assert "tokenmill = tokenmill.cli:main" in scripts


def test_every_module_imports_from_the_wheel_alone(unpacked: Path, tmp_path: Path) -> None:
    program = """
import importlib, pathlib, sys
wheel = pathlib.Path(sys.argv[1])
for path in sorted(wheel.glob("*/**/*.py")):
    parts = path.relative_to(wheel).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    if parts[-1] != "__main__":
        module = importlib.import_module(name)
        assert pathlib.Path(module.__file__).is_relative_to(wheel), module.__file__
"""
    environment = os.environ | {"PYTHONPATH": str(unpacked), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", program, str(unpacked)]
    outcome = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr

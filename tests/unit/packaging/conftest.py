"""The wheel, built once for the tests that look into it or install it."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e_support import ROOT
from tests.job_fixtures import local_job

__all__ = ["local_job", "wheel"]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    (built,) = folder.glob("*.whl")
    return built

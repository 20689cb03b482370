"""The wheel in an environment that holds what the lock's runtime section names, and nothing else."""

import re
import subprocess
import sys
import urllib.request
import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.e2e_support import ROOT, Job, prompts, wait_for

LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")


def locked_runtime() -> list[Requirement]:
    """What the lock installs to run Tokenmill on this interpreter."""
    runtime = LOCK.split("\n# build\n")[0]
    found = [Requirement(line) for line in re.findall(r"^([A-Za-z0-9][^\\\n]+)", runtime, flags=re.MULTILINE)]
    return [requirement for requirement in found if requirement.marker is None or requirement.marker.evaluate()]


def place(package: Distribution, environment: Path) -> None:
    """What an installer does with a package that is installed beside this test: its files, and its programs."""
    (packages,) = environment.glob("lib/python*/site-packages")
    for file in package.files or []:
        source = Path(str(package.locate_file(file)))
        if file.parts[-2:-1] == ("bin",) and ".." in file.parts:
            program = environment / "bin" / file.name
            first, _, rest = source.read_bytes().partition(b"\n")
            assert first.startswith(b"#!"), file
            program.write_bytes(f"#!{environment}/bin/python\n".encode() + rest)
            program.chmod(0o755)
        elif ".." not in file.parts and source.is_file():
            (packages / file).parent.mkdir(parents=True, exist_ok=True)
            (packages / file).symlink_to(source)


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the environment's programs."""
    environment = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(environment, symlinks=True)
    for requirement in locked_runtime():
        package = distribution(requirement.name)
        assert requirement.specifier.contains(package.version), f"{package.name} {package.version} is not the lock's"
        place(package, environment)
    command = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), "install", "--quiet"]
    command += ["--disable-pip-version-check", "--no-index", "--no-deps", "--no-compile", str(wheel)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return environment / "bin"


def environment_of(programs: Path, home: Path) -> dict[str, str]:
    """Nothing of the checkout, and no Redis on the path."""
    return {"PATH": str(programs), "HOME": str(home), "LANG": "C.UTF-8"}


def call(programs: Path, folder: Path, *words: str) -> str:
    done = subprocess.run(
        [str(programs / words[0]), *words[1:]], cwd=folder, env=environment_of(programs, folder), timeout=120,
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_both_programs_are_there(programs: Path, tmp_path: Path) -> None:
    assert call(programs, tmp_path, "tokenmill", "--version").startswith("tokenmill, version ")
    assert call(programs, tmp_path, "rq", "--version").startswith("rq, version 3.0.0")


def test_a_run_and_a_dashboard_need_nothing_else(programs: Path, local_job: Job) -> None:
    """A Redis and a simulated server of the run's own, the report's style, the dashboard's files: all from packages."""
    job = local_job
    job.dataset("A1", prompts("A1", 5), max_tokens="none")
    job.tables["simulator"] = {"time_scale": 100}
    job.write()
    call(programs, job.folder, "tokenmill", "run", str(job.file))
    call(programs, job.folder, "tokenmill", "verify", str(job.file))
    assert job.count() == 5
    assert "<style" in (job.output / "report.html").read_text(encoding="utf-8")

    job.environment = environment_of(programs, job.folder)
    dashboard = job.start_command([str(programs / "tokenmill"), "dashboard", str(job.file), "--port", "0"])
    (url,) = wait_for("its address", lambda: re.findall(r"http://127\.0\.0\.1:\d+/", dashboard.text))
    page = fetched(url)
    loaded = re.findall(r'(?:src|href)="/?([^":]+\.(?:js|css))"', page)
    assert loaded
    for name in loaded:
        assert fetched(url + name)


def fetched(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as response:
        return response.read().decode()

"""Makefile, CI, hooks and README name the same commands, and no file says where packages come from."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
TOOLS = Path(sys.executable).parent
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
CI = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, flags=re.MULTILINE))
# In halves, so that this file is not the one that names them.
REGISTRIES = [
    "py" + "pi.org",
    "python" + "hosted",
    "registry." + "npmjs",
    "npmjs" + ".com",
    "debian" + ".org",
    "ghcr" + ".io",
    "docker" + ".io",
    "conda" + ".anaconda",
]


def tracked() -> list[Path]:
    # A checkout that another user owns (a container's volume) is read all the same.
    command = ["git", "-c", "safe.directory=*", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def make_targets(text: str) -> set[str]:
    return set(re.findall(r"(?:^|[\s`])make ([a-z]+(?:-[a-z]+)*)", text, flags=re.MULTILINE))


def commands_in(markdown: str) -> Iterator[str]:
    """The code in a page: fenced blocks and inline spans."""
    yield from re.findall(r"^```[^\n]*\n(.*?)^```", markdown, flags=re.MULTILINE | re.DOTALL)
    yield from re.findall(r"`([^`\n]+)`", markdown)


def test_make_has_the_promised_targets() -> None:
    assert {"help", "setup", "demo", "demo-clean", "test", "lint", "bench"} <= TARGETS


def test_ci_runs_what_people_run() -> None:
    assert {"setup", "lint", "test", "demo", "demo-clean"} <= make_targets(CI) <= TARGETS
    workflow: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    assert any(step.get("run") == "bash .ci/run" for step in workflow["jobs"]["check"]["steps"])


def test_ci_and_pre_commit_run_every_part_of_lint() -> None:
    (parts,) = re.findall(r"^lint: ([a-z -]+?)  ##", MAKEFILE, flags=re.MULTILINE)
    hooks: dict[str, Any] = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    entries = {hook["entry"] for repo in hooks["repos"] for hook in repo["hooks"]}
    assert entries == {f"make {part}" for part in parts.split()}


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_pages_name_only_targets_that_exist(page: Path) -> None:
    named = {target for code in commands_in(page.read_text(encoding="utf-8")) for target in make_targets(" " + code)}
    assert named <= TARGETS


def test_a_dry_run_of_every_target_works() -> None:
    for target in sorted(TARGETS):
        environment = os.environ | {"MAKEFLAGS": ""}
        command = ["make", "--dry-run", target]
        outcome = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert outcome.returncode == 0, outcome.stderr


def test_the_ci_workflow_follows_its_schema() -> None:
    command = [str(TOOLS / "check-jsonschema"), "--builtin-schema", "vendor.github-workflows"]
    command.append(str(ROOT / ".github/workflows/ci.yml"))
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


def test_no_file_names_a_package_registry() -> None:
    found: list[str] = []
    for path in tracked():
        text = path.read_bytes().decode("utf-8", "replace").lower()
        found += [f"{path.relative_to(ROOT)}: {host}" for host in REGISTRIES if host in text]
    assert not found


CLOSINGS = [
    "12 passed, 3 skipped in 4.21s",
    "1 failed, 812 passed in 301.50s (0:05:01)",
    "no tests ran in 0.01s",
]


@pytest.mark.parametrize("closing", CLOSINGS)
@pytest.mark.parametrize("line", ["===== {} =====", "{}"])
def test_ci_finds_the_closing_line_of_pytest(closing: str, line: str) -> None:
    (expression,) = re.findall(r"sed -nE '([^']+)'", CI)
    output = f"2 workers [76 items]\n{line.format(closing)}\nmake: *** [Makefile:34: test] Error 1\n"
    outcome = subprocess.run(["sed", "-nE", expression], input=output, capture_output=True, text=True, check=True)
    assert outcome.stdout == closing + "\n"

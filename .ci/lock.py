"""Writes requirements.lock: every dependency of pyproject.toml, pinned and hashed, in three sections.

One resolution for Python 3.11 and later on every platform; `runtime` is what the container image
installs, `build` makes the wheel, `development` is the rest. pip and uv install the whole file, and
the Dockerfile cuts it at the headings. Runs `uv`, and keeps the present pins unless given `--upgrade`.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
IMAGE_EXTRAS = ("dashboard", "metrics")
HEADER = """\
# Every dependency, pinned and hashed, for Python 3.11 and later. Written by `make lock`; do not edit.
"""


def compile_requirements(source: str, *arguments: str) -> dict[str, str]:
    """The pinned and hashed entries that uv resolves `source` to, by package; a package may have one per marker."""
    command = ["uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11", "--generate-hashes"]
    command += ["--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links", *arguments, "-"]
    text = subprocess.run(command, input=source, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    entries: dict[str, str] = {}
    for entry in re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE):
        if entry.strip():
            name = re.split(r"[=\[ ;]", entry, maxsplit=1)[0]
            entries[name] = entries.get(name, "") + entry
    return entries


def names(entries: dict[str, str], requirements: list[str]) -> set[str]:
    """The packages that `requirements` need, at the versions of `entries`."""
    pins = re.sub(r" \\\n(    --hash=\S+(?: \\)?\n?)+", "\n", "".join(entries.values()))
    constraints = ROOT / ".cache" / "lock-constraints.txt"
    constraints.parent.mkdir(exist_ok=True)
    constraints.write_text(pins, encoding="utf-8")
    return set(compile_requirements("\n".join(requirements), "--constraint", str(constraints)))


def main() -> None:
    document = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project, build_system = document["project"], document["build-system"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    runtime = project["dependencies"] + [line for extra in IMAGE_EXTRAS for line in extras[extra]]
    everything = project["dependencies"] + [line for lines in extras.values() for line in lines]
    everything += build_system["requires"]
    keep = [] if "--upgrade" in sys.argv[1:] or not LOCK.exists() else ["--constraint", str(LOCK)]

    entries = compile_requirements("\n".join(everything), *keep)
    in_runtime = names(entries, runtime)
    in_build = names(entries, build_system["requires"]) - in_runtime
    sections = {
        "runtime": in_runtime,
        "build": in_build,
        "development": set(entries) - in_runtime - in_build,
    }
    text = HEADER
    for title, members in sections.items():
        text += f"\n# {title}\n" + "".join(entries[name] for name in sorted(members))
    LOCK.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

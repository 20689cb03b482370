"""docs/faults.md promises that a test covers each fault: the tests that it names have to exist."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")


def test_every_test_that_the_page_names_exists() -> None:
    tests = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    there = set(re.findall(r"def (test_\w+)\(", tests))
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert len(named) > 80
    assert named <= there, sorted(named - there)


def test_every_scenario_is_in_the_page() -> None:
    files = (ROOT / "tests" / "faults").glob("test_scenarios_*.py")
    scenarios = {name for path in files for name in re.findall(r"def (test_s\d+_\w+)\(", path.read_text("utf-8"))}
    assert scenarios and scenarios <= set(re.findall(r"`(test_\w+)`", PAGE))

"""Failpoints: what the variable may say, that a slip in it is said, and that nothing is armed without it."""

import subprocess
import sys

import pytest

from budget import failpoints
from budget.failpoints import ACTIONS, CANCELLABLE, POINTS, BadFailpoint, parse


def test_what_the_variable_says() -> None:
    armed = parse("after_http:kill9:nth=7; before_claim:stop ;")
    assert {point: (failpoint.action, failpoint.left) for point, failpoint in armed.items()} == {
        "after_http": ("kill9", 7),
        "before_claim": ("stop", 1),
    }
    assert parse("") == {}


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("action", ACTIONS)
def test_every_place_knows_every_action_that_makes_sense_there(point: str, action: str) -> None:
    if action == "cancel" and point not in CANCELLABLE:
        with pytest.raises(BadFailpoint, match="nothing can be cancelled"):
            parse(f"{point}:{action}")
    else:
        assert set(parse(f"{point}:{action}")) == {point}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("after_htp:kill9", "'after_htp'"),
        ("after_http", "after_http cannot do ''"),
        ("after_http:explode", "'explode'"),
        ("after_http:kill9:7th", "'after_http:kill9:7th'"),
        ("after_http:kill9:nth=0", "nth="),
        ("after_http:kill9:nth=²", "nth="),
    ],
)
def test_a_slip_is_named(text: str, named: str) -> None:
    with pytest.raises(BadFailpoint, match=named):
        parse(text)


def test_nothing_is_armed_here() -> None:
    assert failpoints.ACTIVE is False


def test_a_command_says_the_slip_in_one_sentence() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tokenmill", "status", "examples/quickstart.toml"],
        env={"TOKENMILL_FAILPOINT": "after_htp:kill9", "PATH": ""}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("tokenmill: TOKENMILL_FAILPOINT: there is no failpoint 'after_htp'")
    assert done.stderr.count("\n") == 1

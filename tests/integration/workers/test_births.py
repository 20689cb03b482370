"""Whose name a worker may take."""

import os
import socket
import subprocess
from typing import Any

import pytest

from budget import keys, process, sweep
from workers import births
from workers.contracts import DatasetConfig, RunConfig

KEY = keys.rq_worker("w")
CONFIG = RunConfig(
    name="run",
    output="/nowhere",
    tokenizer="none",
    datasets=[DatasetConfig(name="A1", prompts="none", max_tokens=None, sampling={"max_new_tokens": 10})],
)


def listed(connection: Any, **fields: "str | int") -> None:
    connection.hset(KEY, mapping={"birth": "now", **fields})
    connection.sadd(keys.RQ_WORKERS, KEY)


def test_a_name_that_nobody_has_or_left_is_free(connection: Any) -> None:
    births.make_room(connection, "w", CONFIG)
    listed(connection, death="now")
    births.make_room(connection, "w", CONFIG)


def test_who_died_on_this_host_makes_room(connection: Any) -> None:
    child = subprocess.Popen(["sleep", "600"])
    identity = process.identity(child.pid)
    child.kill()
    child.wait()
    listed(connection, **{sweep.PROCESS_FIELD: identity})
    births.make_room(connection, "w", CONFIG)
    assert not connection.exists(KEY) and not connection.scard(keys.RQ_WORKERS)


@pytest.mark.parametrize(
    "left",
    [
        {sweep.PROCESS_FIELD: process.identity()},
        {"pid": os.getpid(), "hostname": socket.gethostname()},
    ],
)
def test_a_start_of_ones_own_that_was_cut_short_makes_room(connection: Any, left: dict[str, Any]) -> None:
    """Redis went away in the middle of it; the identity is of the test's process, so it is made there."""
    listed(connection, **left)
    births.make_room(connection, "w", CONFIG)
    assert not connection.exists(KEY)


@pytest.mark.parametrize("process_of", ["elsewhere/pid:[1]/1/1", ""])
def test_who_may_be_alive_keeps_the_name(connection: Any, process_of: str) -> None:
    listed(connection, pid=1, hostname="gpu7", **({sweep.PROCESS_FIELD: process_of} if process_of else {}))
    with pytest.raises(births.NameTaken, match=r"a worker named w is at work on gpu7 already: .* --name"):
        births.make_room(connection, "w", CONFIG)
    assert connection.exists(KEY)

"""Waiting is said, not too soon and not too often, and ends when told to."""

import logging
import threading

import pytest
from redis.exceptions import OutOfMemoryError, ResponseError

from budget.connections import RedisAway, RedisRefuses, translated
from budget.errors import Interrupted
from producer import patience
from producer.patience import Patience, Saying, passing


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    held = Clock()
    monkeypatch.setattr(patience.time, "monotonic", held.monotonic)
    return held


def test_it_is_said_after_two_seconds_and_each_minute(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    saying = Saying()
    for _ in range(1300):
        saying.hold("waits for Redis")
        clock.now += 0.1
    assert [record.getMessage() for record in caplog.records] == [
        "waits for Redis",
        "waits for Redis (1 min so far)",
        "waits for Redis (2 min so far)",
    ]


def test_a_short_wait_is_not_said(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    saying = Saying()
    with caplog.at_level(logging.INFO):
        saying.hold("waits")
        clock.now += 1
        saying.hold("waits")
        saying.over("it goes on")
        assert caplog.records == []
        saying.hold("waits")
        clock.now += 3
        saying.hold("waits")
        saying.over("it goes on")
    assert [record.getMessage() for record in caplog.records] == ["waits", "it goes on"]


def test_a_stop_ends_every_wait() -> None:
    stop = threading.Event()
    held = Patience(stop)
    held.pause(0)
    stop.set()
    with pytest.raises(Interrupted):
        held.pause(600)
    with pytest.raises(Interrupted):
        held.until(lambda: "for ever")


def test_a_failure_meanwhile_ends_the_wait() -> None:
    held = Patience(threading.Event())

    def fail() -> None:
        raise RuntimeError("the lock is lost")

    held.check = fail
    with pytest.raises(RuntimeError):
        held.until(lambda: "for ever")


def test_a_redis_that_goes_away_while_waiting_is_waited_for() -> None:
    answers = iter([RedisAway("gone"), RedisAway("gone"), None])

    def missing() -> str | None:
        answer = next(answers)
        if answer is not None:
            raise answer
        return None

    Patience(threading.Event()).until(missing)


@pytest.mark.parametrize(
    ("raised", "waits"),
    [
        (ConnectionResetError("reset"), True),
        (OutOfMemoryError("OOM command not allowed"), True),
        (ResponseError("MISCONF Redis is configured to save"), True),
        (ResponseError("Command # 1 (SET lock:producer:A1...) of pipeline caused error: MISCONF Redis is"), True),
        (ResponseError("BUSY Redis is busy running a script"), True),
        (ResponseError("WRONGTYPE Operation against a key"), False),
        (ResponseError("ERR unknown command"), False),
    ],
)
def test_only_what_passes_is_waited_for(raised: Exception, waits: bool) -> None:
    with pytest.raises((RedisAway, RedisRefuses)) as caught, translated():
        raise raised
    if waits:
        assert passing(caught.value).startswith("the producer waits: ")
    else:
        with pytest.raises(RedisRefuses):
            passing(caught.value)

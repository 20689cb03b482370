"""How many requests a server is sent: against a model of a server, look by look."""

import pytest

from workers.limits import Limit, Loads


class Model:
    """A server with so many slots; what is more waits. With `told`, it says how many slots it has."""

    def __init__(self, slots: int, *, told: bool = True) -> None:
        self.slots = slots
        self.told = told

    def loads(self, in_flight: int) -> Loads:
        running = min(self.slots, in_flight)
        return Loads(running=running, waiting=in_flight - running, most=self.slots if self.told else None)


def looks(limit: Limit, server: Model, count: int, others: int = 0) -> list[int]:
    """The limit after each look at a server that is always filled up to it, beside `others` of other workers."""
    found: list[int] = []
    in_flight = 0
    for _ in range(count):
        in_flight = max(limit.now, min(in_flight, server.slots))  # what runs is not taken back
        limit.told(server.loads(in_flight + others), in_flight, used=True)
        found.append(limit.now)
    return found


@pytest.mark.parametrize("slots", [1, 16, 100])
def test_a_server_that_tells_its_slots_gets_as_many_requests_at_once(slots: int) -> None:
    limit, server = Limit(256), Model(slots)
    limit.begin(server.loads(0))
    assert limit.now == slots
    assert looks(limit, server, 20) == [slots] * 20


def test_no_server_gets_more_than_the_worker_may_send() -> None:
    limit, server = Limit(64), Model(1000, told=False)
    limit.begin(server.loads(0))
    assert looks(limit, server, 10)[-1] == 64


def test_slots_that_are_not_told_are_found_and_kept_to_within_a_few() -> None:
    limit, server = Limit(4096), Model(200, told=False)
    limit.begin(server.loads(0))
    found = looks(limit, server, 40)
    assert all(200 <= value <= 230 for value in found[10:])


def test_each_worker_takes_back_its_share_of_what_waits() -> None:
    server = Model(16)
    one, other = Limit(256), Limit(256)
    one.told(Loads(running=16, waiting=24, most=16), 20, used=True)
    other.told(Loads(running=16, waiting=24, most=16), 20, used=True)
    assert (one.now, other.now) == (8, 8)
    assert looks(one, server, 5, others=8) == [8] * 5


@pytest.mark.parametrize("in_flight", [16, 3, 0])
def test_answers_that_all_end_at_once_make_no_room(in_flight: int) -> None:
    """For a moment little runs there, and some of what ended is still on its way here."""
    limit = Limit(256)
    limit.begin(Loads(running=0, waiting=0, most=16))
    limit.told(Loads(running=3, waiting=0, most=16), in_flight, used=True)
    assert limit.now <= 16


def test_a_limit_that_is_not_used_does_not_grow() -> None:
    limit = Limit(256)
    limit.begin(Loads(running=0, waiting=0, most=None))
    before = limit.now
    limit.told(Loads(running=3, waiting=0, most=None), 3, used=False)
    assert limit.now == before


def test_room_that_others_leave_is_taken_up() -> None:
    limit, server = Limit(256), Model(64)
    limit.begin(server.loads(60))
    assert limit.now == 4
    assert looks(limit, server, 40)[-1] == 64


def test_a_server_that_refuses_gets_half() -> None:
    limit = Limit(256)
    limit.begin(Loads(running=0, waiting=0, most=100))
    limit.refused(80)
    assert limit.now == 40


@pytest.mark.parametrize(("slots", "least", "most"), [(32, 32, 70), (10_000, 1000, 1000)])
def test_without_loads_more_is_sent_only_while_it_brings_more(slots: int, least: int, most: int) -> None:
    """Every request in a slot makes a token a second; those beyond the slots only make the others wait."""
    limit, now = Limit(1000), 0.0
    found: list[int] = []
    limit.begin(None)
    for _ in range(60_000):
        now += 100 / min(limit.now, slots)
        limit.answered(100, now, used=True)
        found.append(limit.now)
    assert least <= min(found[40_000:]) and max(found[40_000:]) <= most

"""What jobs reserve under each admission, and how often that is looked at again."""

import pytest

from budget.ages import Ages
from budget.forecast import bucket
from workers.reservations import Pace, Reservations

MOST = 4096


def _known(
    mean: int = 400, *, count: int = 5000, in_flight: int = 10, cap: int | None = 1_000_000, reserved: int = 0
) -> Ages:
    ages = {0: in_flight} if in_flight else {}
    return Ages(finished={bucket(mean): count}, in_flight=ages, worst=MOST, cap=cap, spent=900_000, reserved=reserved)


def _reservations(admission: str = "forecast", renew_s: float = 10.0) -> Reservations:
    return Reservations(admission, {"A": MOST, "B": MOST}, renew_s)  # pyright: ignore[reportArgumentType]


def test_before_redis_has_been_heard_a_job_reserves_all_it_could_cost() -> None:
    reservations = _reservations()
    assert reservations.first("A") == MOST
    assert reservations.revised("A", 100, MOST) == MOST


def test_what_is_known_of_one_dataset_says_nothing_of_another() -> None:
    reservations = _reservations()
    reservations.learn({"A": _known()})
    assert 350 < reservations.first("A") < 700
    assert reservations.first("B") == MOST


def test_a_job_never_reserves_more_than_it_can_cost_itself() -> None:
    # A dataset of conversations: the most is five turns' worth, this prompt has one.
    reservations = _reservations()
    reservations.learn({"A": Ages(worst=5 * MOST)})
    assert reservations.first("A") == 5 * MOST
    assert reservations.revised("A", 0, MOST) == MOST


def test_an_unknown_worst_case_is_that_of_one_answer() -> None:
    reservations = _reservations()
    reservations.learn({"A": Ages()})
    assert reservations.first("A") == MOST


@pytest.mark.parametrize(("admission", "first", "revised"), [("strict", 0, MOST), ("drain", 0, 0)])
def test_the_other_admissions_do_not_look_at_lengths(admission: str, first: int, revised: int) -> None:
    reservations = _reservations(admission)
    reservations.learn({"A": _known()})
    assert reservations.first("A") == first
    assert reservations.revised("A", 300, MOST) == revised
    assert reservations.near_cap() == []


def test_a_dataset_is_near_its_cap_when_all_that_is_in_flight_would_pass_it() -> None:
    reservations = _reservations()
    reservations.learn({"A": _known(reserved=40_000), "B": _known(reserved=40_000)})
    assert reservations.near_cap() == ["A", "B"]  # 60,000 remain of each, and 80,000 are in flight
    reservations.learn({"B": _known(reserved=15_000)})
    assert reservations.near_cap() == []  # 60,000 of A and 85,000 of B, 55,000 in flight
    reservations.learn({"A": _known(cap=None, reserved=10**9)})
    assert reservations.near_cap() == ["B"]


def test_a_dataset_with_nothing_in_flight_needs_no_revision() -> None:
    reservations = _reservations()
    reservations.learn({"A": _known(in_flight=0, reserved=99_999)})
    assert "A" not in reservations.near_cap()


def test_near_the_cap_over_all_datasets_all_are_revised() -> None:
    reservations = Reservations("forecast", {"A": MOST, "B": MOST}, 10.0, total_cap=1_950_000)
    known = _known(cap=None, reserved=40_000)
    reservations.learn({"A": known, "B": known})
    assert reservations.near_cap() == ["A", "B"]  # 1,800,000 are spent and 80,000 in flight
    reservations = Reservations("forecast", {"A": MOST, "B": MOST}, 10.0, total_cap=2_000_000)
    reservations.learn({"A": known, "B": known})
    assert reservations.near_cap() == []


def test_near_a_cap_it_looks_thirty_times_an_answer() -> None:
    reservations = _reservations()
    reservations.learn({"A": _known(mean=3000), "B": _known(mean=600)})
    middle = 609.5  # of the bucket that 600 lies in
    assert reservations.pause_s(["A", "B"], speed=20.0) == pytest.approx(middle / 20 / 30, rel=0.1)
    assert reservations.pause_s(["A"], speed=20.0) > reservations.pause_s(["B"], speed=20.0)
    assert reservations.pause_s([], speed=20.0) == 10.0
    assert reservations.pause_s(["A"], speed=0.01) == 10.0
    assert reservations.pause_s(["B"], speed=1e6) == 0.1


def test_tests_may_renew_faster_than_the_shortest_look() -> None:
    assert _reservations(renew_s=0.05).pause_s(["A"], speed=20.0) == 0.05


def test_every_dataset_comes_first_in_its_turn() -> None:
    reservations = _reservations()
    names = ["A", "B", "C"]
    assert [reservations.order(names, turn)[0] for turn in range(6)] == ["A", "B", "C", "A", "B", "C"]
    assert sorted(reservations.order(names, 1)) == names


def test_all_leases_are_due_once_a_period_and_looks_fall_between() -> None:
    pace = Pace(10.0)
    assert pace.whole(100.0)
    assert pace.pause(100.0, 3.0) == 3.0
    assert not pace.whole(103.0)
    assert pace.pause(109.0, 3.0) == 1.0
    assert pace.whole(110.0)
    assert pace.pause(110.0, 30.0) == 10.0
    assert pace.pause(125.0, 3.0) == 0.0  # late: at once

"""The dashboard's memory: bounded, from the run's beginning on, with the newest moment last."""

from tokenmill.dashboard.history import History, Point


def test_it_stays_bounded_and_keeps_the_beginning_and_the_end() -> None:
    history = History(most=10)
    for second in range(1000):
        history.add(Point(time=second, tokens_per_s=100.0, in_flight=second, slots=64))
    times = [point.time for point in history.points]
    assert 5 <= len(times) <= 10
    assert times == sorted(times)
    assert times[0] < 200 and times[-1] > 800
    assert all(point.tokens_per_s == 100.0 and point.slots == 64 for point in history.points)


def test_a_wide_point_is_the_mean_of_its_moments() -> None:
    history = History(most=2)
    for rate in (10.0, 20.0, 40.0):
        history.add(Point(time=rate, tokens_per_s=rate, in_flight=0, slots=0))
    assert [point.tokens_per_s for point in history.points] == [15.0, 40.0]
    history.add(Point(time=50, tokens_per_s=1.0, in_flight=0, slots=0))
    assert len(history.points) == 2, "a later point is as wide as those before: it waits for its second moment"
    history.add(Point(time=51, tokens_per_s=3.0, in_flight=0, slots=0))
    assert history.points[-1].tokens_per_s in (2.0, 21.0)

"""Which request meets which fault."""

import pytest

from workers.simulator.faults import Fault, FaultBox


def _modes(box: FaultBox, prompts: list[int], dataset: str = "") -> list[str | None]:
    drawn = [box.draw([prompt], dataset, str(prompt).encode()) for prompt in prompts]
    return [None if fault is None else fault.mode for fault in drawn]


def test_a_probability_hits_the_same_attempts_in_any_order() -> None:
    fault = Fault(mode="nan", probability=0.3)
    forward = dict(zip(range(500), _modes(FaultBox([fault], seed=1), list(range(500))), strict=True))
    backward = dict(
        zip(reversed(range(500)), _modes(FaultBox([fault], seed=1), list(reversed(range(500)))), strict=True)
    )
    assert forward == backward
    hits = sum(mode is not None for mode in forward.values())
    assert 100 < hits < 200
    assert _modes(FaultBox([fault], seed=2), list(range(500))) != list(forward.values())


def test_a_repeated_prompt_is_a_new_attempt() -> None:
    box = FaultBox([Fault(mode="nan", probability=0.5)], seed=0)
    assert set(_modes(box, [7] * 50)) == {None, "nan"}


def test_count_after_token_and_dataset_restrict_it() -> None:
    assert _modes(FaultBox([Fault(mode="hang", count=2)], 0), [1, 2, 3]) == ["hang", "hang", None]
    assert _modes(FaultBox([Fault(mode="hang", after=2)], 0), [1, 2, 3]) == [None, None, "hang"]
    assert _modes(FaultBox([Fault(mode="hang", token=2)], 0), [1, 2, 3]) == [None, "hang", None]
    box = FaultBox([Fault(mode="hang", dataset="a")], 0)
    assert _modes(box, [1], "a") + _modes(box, [1], "b") == ["hang", None]
    assert box.hits == [1]


def test_the_first_that_matches_wins_and_server_wide_ones_are_not_drawn() -> None:
    box = FaultBox([Fault(mode="dead"), Fault(mode="nan", token=1), Fault(mode="abort")], 0)
    assert _modes(box, [1, 2]) == ["nan", "abort"]
    assert [fault.mode for fault in box.server_wide()] == ["dead"]


def test_replacing_starts_the_counts_anew() -> None:
    fault = Fault(mode="hang", count=1)
    box = FaultBox([fault], 0)
    assert _modes(box, [1, 2]) == ["hang", None]
    box.replace([fault])
    assert _modes(box, [3, 4]) == ["hang", None]


@pytest.mark.parametrize("fields", [{"probability": 1.5}, {"probability": -0.1}, {"seconds": -1.0}])
def test_nonsense_is_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        Fault(mode="hang", **fields)  # pyright: ignore[reportArgumentType]

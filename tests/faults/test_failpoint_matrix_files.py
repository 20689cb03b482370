"""The kill matrix, collector and producer: they hold nothing, so not a token may be made twice."""

import pytest

from budget.failpoints import POINTS
from tests.faults.matrix import COLLECTOR, PRODUCER, WORKER, Case, cases
from tests.faults.matrix_fixtures import StartCase


@pytest.mark.parametrize("case", cases(*COLLECTOR, *PRODUCER), ids=str)
def test_a_collector_or_a_producer_fails(case: Case, start_case: StartCase) -> None:
    rig = start_case(case)
    rig.run()
    rig.check()


def test_no_place_is_left_out() -> None:
    assert (*WORKER, *COLLECTOR, *PRODUCER) == POINTS

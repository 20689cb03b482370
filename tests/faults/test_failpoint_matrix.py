"""The kill matrix, workers: one dies, raises, freezes or is cancelled at every place that an answer comes by."""

import pytest

from tests.faults.matrix import WORKER, Case, cases
from tests.faults.matrix_fixtures import StartCase


@pytest.mark.parametrize("case", cases(*WORKER), ids=str)
def test_a_worker_fails(case: Case, start_case: StartCase) -> None:
    rig = start_case(case)
    rig.run()
    rig.check()

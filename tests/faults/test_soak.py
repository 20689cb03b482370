"""Three seeds of the soak; `make soak N=20` runs new ones."""

import pytest

from tests.faults.soak import soak


@pytest.mark.parametrize("seed", [17, 18, 19])
def test_a_run_under_random_faults_ends_whole(seed: int) -> None:
    done = soak(seed)
    print(f"\n{done}")
    assert not done.problem, done.problem

"""A ledger on each of the servers."""

import pytest
import redis

from tests.ledgers import Rig


@pytest.fixture
def rig(connection: "redis.Redis") -> Rig:
    """The datasets A and B, open without a cap, seeded from no files."""
    rig = Rig(connection)
    rig.cap("A", None)
    rig.cap("B", None)
    return rig

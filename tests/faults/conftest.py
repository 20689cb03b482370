"""The fixtures of runs with real processes."""

from tests.faults.matrix_fixtures import shared, start_case
from tests.job_fixtures import job, local_job, redis_server, start_simulator

__all__ = [
    "job",
    "local_job",
    "redis_server",
    "shared",
    "start_case",
    "start_simulator",
]

"""The fixtures of runs with real processes."""

from tests.job_fixtures import job, local_job, redis_server, start_simulator

__all__ = ["job", "local_job", "redis_server", "start_simulator"]

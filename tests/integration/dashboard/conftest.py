"""A run in its middle, and a dashboard of it."""

import pytest

from tests.dashboard_support import SERVERS, Dashboard, begin
from tests.e2e_support import Job, RedisServer
from tests.job_fixtures import job, local_job, redis_server

__all__ = ["job", "local_job", "redis_server"]


@pytest.fixture
def running(job: Job, redis_server: RedisServer) -> Job:
    job.dataset("A1", b"", max_tokens=1000)
    job.dataset("B2", b"", max_tokens=5000)
    job.tables["sglang"]["servers"] = list(SERVERS)
    begin(redis_server.client, job.write())
    return job


@pytest.fixture
def dashboard(running: Job) -> Dashboard:
    return Dashboard(running)

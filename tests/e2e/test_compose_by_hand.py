"""The commands of docker-compose.yml without Docker: each service is a process, with the very words that stand there.

What Docker does for them is done here: a service has an address of its own, so its ports are those of the file, and
names and volumes are put in place. Nothing else is changed.
"""

import sys
import urllib.request
from collections.abc import Generator
from signal import SIGTERM
from typing import Any

import pytest
import yaml

from tests.deploy_support import DEPLOY, compose, own_address, seconds
from tests.e2e_support import Job, RedisServer, Running, SimulatedServer, prompts, wait_for
from tests.support import server_binary

SERVICES: dict[str, Any] = compose(RUN_FILE="run.toml")["services"]
SLOTS = 4


class Containers:
    """Starts services. `addresses` are theirs by name; a second container of a service gets another one."""

    def __init__(self, job: Job) -> None:
        self.addresses: dict[str, str] = {}
        self.redis: RedisServer | None = None
        self._job = job
        (job.folder / "data").mkdir()

    def up(self, service: str) -> Running:
        definition = SERVICES[service]
        address = own_address(6379, 8787, 9100, 30000)
        self.addresses.setdefault(service, address)
        words = [self._here(word, address) for word in definition["command"]]
        environment = {
            name: self._here(value, address) for name, value in definition.get("environment", {}).items() if value
        }
        if service == "redis":
            program = server_binary("valkey")
            assert program is not None and words[0] == "valkey-server"
            words = ["env", "-C", str(self._job.folder / "data"), program, *words[1:], "--bind", address]
        else:
            words = [sys.executable, "-m", "tokenmill", *words]
        return self._job.start_command(words, **environment)

    def healthy(self, service: str) -> None:
        """Its health check, until it passes."""
        program: list[str] = SERVICES[service]["healthcheck"]["test"]
        assert program[:3] == ["CMD", "python", "-c"]
        code = program[3].replace("127.0.0.1", self.addresses[service])
        wait_for(f"{service} to be healthy", lambda: self._job.start_command([sys.executable, "-c", code]).ended() == 0)

    def look_into_redis(self) -> RedisServer:
        """For the test, and for the commands that it calls."""
        url = f"redis://{self.addresses['redis']}:6379/0"
        self._job.environment["TOKENMILL_REDIS_URL"] = url
        self.redis = RedisServer.at(url)
        return self.redis

    def metrics(self, service: str, port: int) -> str:
        """What Prometheus gets, which asks by the service's name."""
        url = f"http://{self.addresses[service]}:{port}/metrics"
        request = urllib.request.Request(url, headers={"host": f"{service}:{port}"})
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.read().decode()

    def _here(self, word: str, address: str) -> str:
        word = word.replace("/job/", f"{self._job.folder}/").replace('"/out"', f'"{self._job.output}"')
        word = word.replace("0.0.0.0", address)
        for name, known in self.addresses.items():
            word = word.replace(f"//{name}:", f"//{known}:")
        return word


@pytest.fixture
def containers(local_job: Job) -> Generator[Containers]:
    found = Containers(local_job)
    yield found
    if found.redis is not None:
        found.redis.remove()


def test_a_whole_run_with_the_commands_of_the_compose_file(local_job: Job, containers: Containers) -> None:
    job = local_job
    for name in ("A1", "B2"):
        job.dataset(name, prompts(name, 6), max_tokens="none")
    job.tables["sampling"]["max_new_tokens"] = 250
    job.tables["sglang"]["concurrency"] = SLOTS
    job.write()

    redis_process, sim = containers.up("redis"), containers.up("sim")
    server = containers.look_into_redis()
    containers.healthy("sim")
    simulator = SimulatedServer(f"http://{containers.addresses['sim']}:30000", speed=1)
    simulator.hold()
    collector, producer, first, dashboard = (
        containers.up(service) for service in ("collector", "producer", "worker", "dashboard")
    )
    wait_for("a worker with all its slots filled", lambda: list(server.holders(*job.names).values()) == [SLOTS])
    containers.healthy("dashboard")
    assert "tokenmill_requests_in_flight" in containers.metrics("dashboard", 8787)
    assert "tokenmill_worker_requests_in_flight" in containers.metrics("worker", 9100)
    assert "sglang:num_running_reqs" in containers.metrics("sim", 30000)

    second = containers.up("worker")
    wait_for("another worker beside it", lambda: list(server.holders(*job.names).values()) == [SLOTS] * 2)
    first.send(SIGTERM)
    wait_for("it to drain", lambda: "draining" in first.text)
    simulator.let_go()
    assert first.ended(seconds(SERVICES["worker"]["stop_grace_period"])) == 3, first.text
    job.finish(collector, producer, second)
    job.check_all_answered()
    assert simulator.served(*job.names) == 12, "nothing was generated twice"

    for service, running in (("dashboard", dashboard), ("sim", sim), ("redis", redis_process)):
        running.send(SIGTERM)
        assert running.ended(seconds(SERVICES[service]["stop_grace_period"])) == 0, running.text


def test_what_prometheus_asks_is_there() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    asked = {
        job["job_name"]: {(name, source["port"]) for source in job["dns_sd_configs"] for name in source["names"]}
        for job in config["scrape_configs"]
        if "dns_sd_configs" in job
    }
    (run,) = [job for job in config["scrape_configs"] if "static_configs" in job]
    assert run["static_configs"] == [{"targets": ["dashboard:8787"]}]
    words: list[str] = SERVICES["dashboard"]["command"]
    assert words[words.index("--port") + 1] == "8787" and words[words.index("--allow-host") + 1] == "dashboard"
    words = SERVICES["worker"]["command"]
    first = int(words[words.index("--metrics-port") + 1])
    assert asked == {
        "tokenmill-workers": {("worker", port) for port in range(first, first + 8)},
        "sglang": {(name, 30000) for name in SERVICES if name == "sim" or name.startswith("sglang-")},
    }
    assert all("--enable-metrics" in SERVICES[name]["command"] for name in SERVICES if name.startswith("sglang-"))


def test_grafana_is_given_prometheus_and_the_dashboard_of_this_repository() -> None:
    provisioning = DEPLOY / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text("utf-8"))["datasources"]
    assert source["url"] == "http://prometheus:9090" and source["isDefault"]
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "tokenmill.yml").read_text("utf-8"))["providers"]
    mounts: dict[str, str] = dict(mount.split(":")[1::-1] for mount in SERVICES["grafana"]["volumes"] if "./" in mount)
    page = mounts[f"{provider['options']['path']}/tokenmill.json"]
    assert (DEPLOY.parent / page).samefile(DEPLOY / "grafana" / "tokenmill.json")
    assert (DEPLOY.parent / mounts["/etc/grafana/provisioning"]).samefile(provisioning)

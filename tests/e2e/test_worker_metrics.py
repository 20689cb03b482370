"""`tokenmill work --metrics-port`: each worker process tells Prometheus of itself."""

import re
import socket
import urllib.request
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.e2e_support import Job, prompts, wait_for
from tests.job_fixtures import StartSimulator


def samples(url: str) -> dict[str, dict[tuple[str, ...], float]]:
    """Every sample by name and by the values of its labels, in the order of their names."""
    with urllib.request.urlopen(url, timeout=60) as response:
        assert response.headers["content-type"].startswith("text/plain")
        text = response.read().decode()
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(value for _, value in sorted(sample.labels.items()))] = sample.value
    return found


def urls(text: str) -> list[str]:
    return re.findall(r"metrics of this worker: (\S+)", text)


def a_job(job: Job, simulator: Any) -> Job:
    job.tables["sglang"]["servers"] = [simulator.url]
    job.dataset("A1", prompts("A1", 100), max_tokens=1_000_000)
    return job.write()


def test_a_worker_tells_what_it_has_in_flight(job: Job, start_simulator: StartSimulator) -> None:
    simulator = start_simulator(speed=20)
    simulator.hold()
    a_job(job, simulator)
    job.start("collect")
    job.start("push")
    worker = job.start("work", "--name", "w-one", "--metrics-port", "0")
    (url,) = wait_for("its address", lambda: urls(worker.text))
    assert url.startswith("http://127.0.0.1:")
    in_flight = {("A1", "w-one"): 16.0}
    wait_for("all slots in flight", lambda: samples(url).get("tokenmill_worker_requests_in_flight") == in_flight)
    held = samples(url)
    assert held["tokenmill_worker_slots"] == {("w-one",): 16}
    assert held["tokenmill_worker_server_up"] == {(simulator.url, "w-one"): 1}
    assert held["tokenmill_worker_tokens_total"] == {(simulator.url, "w-one"): 0}
    assert held["process_resident_memory_bytes"][()] > 1e6
    wait_for("the slots in status", lambda: [worker["slots"] for worker in job.status()["workers"]] == [16])
    simulator.let_go()
    wait_for("tokens", lambda: samples(url)["tokenmill_worker_tokens_total"][simulator.url, "w-one"] >= 400)


def test_several_processes_count_on_from_the_port(job: Job, start_simulator: StartSimulator) -> None:
    a_job(job, start_simulator())
    worker = job.start("work", "-n", "2", "--metrics-port", "0")
    wait_for("both addresses", lambda: len(urls(worker.text)) == 2)
    first, second = urls(worker.text)
    assert first != second
    assert samples(first).keys() >= {"process_cpu_seconds_total"}


def test_without_the_option_nothing_listens_and_a_taken_port_is_a_sentence(
    job: Job, start_simulator: StartSimulator
) -> None:
    a_job(job, start_simulator())
    with socket.create_server(("127.0.0.1", 0)) as other:
        ended = job.call("work", "--wait", "0", "--metrics-port", str(other.getsockname()[1]))
    assert ended.code == 2 and "is taken: give another with --metrics-port" in ended.said[0]
    worker = job.start("work")
    wait_for("it to wait for its run", lambda: "waiting for the collector" in worker.text)
    assert urls(worker.text) == []

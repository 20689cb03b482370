"""What one look at a run costs: `status`, the dashboard and the metrics all make it, every second or two.

Prints the median and the slowest of a hundred looks at 50 datasets and 200 workers on 8 servers, and how much
of it was CPU time of this process.
"""

import statistics
import time
from typing import Any

from _rig import a_redis, machine, publish
from rq.utils import now, utcformat

from budget import keys
from tokenmill import status

DATASETS = 50
WORKERS = 200
SERVERS = 8
LOOKS = 100


def fill(connection: Any, datasets: list[str], servers: list[str]) -> None:
    """Workers, servers and counts, as their parts would write them."""
    pipe = connection.pipeline(transaction=False)
    for name in datasets:
        pipe.hset(keys.budget(name), mapping={"reserved": 50_000, "committed": 3_000, "inputs": 20_000})
        pipe.set(keys.spent(name), 4_000_000)
        pipe.hset(keys.RATES, name, "812.5")
        pipe.hset(keys.wasted(name), mapping={f"w{number}": 100 for number in range(WORKERS)})
    for number in range(WORKERS):
        key = keys.rq_worker(f"w{number}")
        fields = {"hostname": f"host{number % 25}", "in_flight": 64, "slots": 64, "state": "busy"}
        pipe.hset(key, mapping={**fields, "servers": servers[number % SERVERS], "queues": ",".join(datasets)})
        pipe.sadd(keys.RQ_WORKERS, key)
    for url in servers:
        seen = {"state": "up", "seen": utcformat(now()), "running": 512, "waiting": 3, "tokens_per_s": "2500.0"}
        pipe.hset(keys.server(url), mapping=seen)
    pipe.execute()


def main() -> None:
    servers = [f"http://gpu{number}:30000" for number in range(SERVERS)]
    print(machine())
    with a_redis() as (connection, url):
        config = publish(connection, servers, datasets=DATASETS, concurrency=64)
        fill(connection, [dataset.name for dataset in config.datasets], servers)
        seen = status.online(config, connection, url)
        wall: list[float] = []
        began = time.process_time()
        for _ in range(LOOKS):
            start = time.perf_counter()
            seen = status.online(config, connection, url)
            wall.append(1000 * (time.perf_counter() - start))
        cpu = 1000 * (time.process_time() - began) / LOOKS
    assert len(seen.datasets) == DATASETS and len(seen.workers) == WORKERS and len(seen.servers) == SERVERS
    print(
        f"{DATASETS} datasets, {WORKERS} workers, {SERVERS} servers: median {statistics.median(wall):.1f} ms, "
        f"slowest {max(wall):.1f} ms, {cpu:.1f} ms of them CPU time here"
    )


if __name__ == "__main__":
    main()

"""What the processes of the race tests run: workers that claim and commit random lengths as fast as they can."""

import os
import random
import secrets
import sys
import time

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from budget import keys, verbs
from budget.forecast import bucket
from budget.verbs import Lease
from tests.ledgers import Rig

WORST = 100


def spend(rig: Rig, seed: int) -> None:
    """Claim and commit until the dataset is complete."""
    chance = random.Random(seed)
    worker = f"w{seed}"
    while True:
        claimed = rig.claim(worker, 3, reserve=0 if rig.admission == "drain" else 50)
        for lease in claimed.leases:
            rig.commit(lease, chance.randint(1, WORST), worker=worker)
        if claimed.gates["A"].state in ("complete", "empty"):
            return


def spend_racily(rig: Rig, seed: int) -> None:
    """The same by a ledger that checks and then acts, in Python: what the Lua is there to be better than."""
    chance = random.Random(seed)
    cap = int(rig.field("A", "cap") or 0)
    client = rig.connection
    while rig.spent("A") + int(client.get("racy:reserved") or 0) + WORST <= cap:
        # The network between a check and its act; without it the fault would hide on a machine with few cores.
        time.sleep(0.02)
        client.incrby("racy:reserved", WORST)
        tokens, job = chance.randint(WORST // 2, WORST), secrets.token_hex(8)
        with client.pipeline() as pipe:
            pipe.incrby(keys.spent("A"), tokens).hset(keys.done("A"), job, tokens)
            pipe.hincrby(keys.budget("A"), "committed", 1).hincrby(keys.ages("A"), f"c{bucket(tokens)}", 1)
            pipe.incrby("racy:reserved", -WORST).execute()


def commit_same(rig: Rig, seed: int) -> None:
    """Commit the ids 0 to 199 in an order of one's own, whoever holds them; each has one length."""
    order = list(range(200))
    random.Random(seed).shuffle(order)
    for number in order:
        lease = Lease(dataset="A", job=f"A-{number}", token=f"t{seed}-1", data=b"", attempt=1, failures=0, deaths=0)
        rig.commit(lease, number + 1, worker=f"w{seed}")


def seed_same(rig: Rig, seed: int) -> None:
    """Seed the same ids from a file while they are being committed."""
    chance = random.Random(seed)
    for _ in range(100):
        some = chance.sample(range(200), 20)
        rig.run(verbs.seed(dataset="A", entries=[(f"A-{number}", number + 1, False) for number in some]))


def enqueue_same(rig: Rig, seed: int) -> None:
    """Queue the same ids in batches of an order of one's own."""
    order = list(range(200))
    random.Random(seed).shuffle(order)
    for start in range(0, 200, 7):
        rig.enqueue("A", *[f"A-{number}" for number in order[start : start + 7]])


ROLES = {role.__name__: role for role in (spend, spend_racily, commit_same, seed_same, enqueue_same)}


def run(path: str, role: str, admission: str, seed: int) -> None:
    with redis.Redis(unix_socket_path=path, retry=Retry(NoBackoff(), 3)) as client:
        racer = Rig(client, ("A",), ready=False)
        racer.admission = admission
        # All begin together, once the starter has seen them.
        racer.connection.blmove("go", "gone", timeout=60)
        ROLES[role](racer, seed)


if __name__ == "__main__":
    # One start of Python for all: each racer is forked from here, and opens a connection of its own.
    path, admission, *roles = sys.argv[1:]
    children: list[int] = []
    for seed, role in enumerate(roles):
        if (child := os.fork()) == 0:
            run(path, role, admission, seed)
            os._exit(0)
        children.append(child)
    sys.exit(sum(os.waitpid(child, 0)[1] != 0 for child in children))

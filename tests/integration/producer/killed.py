"""A producer process that kills itself (SIGKILL) at its n-th command to Redis, for `test_faults`.

Usage: python -m tests.integration.producer.killed FOLDER PROMPTS AT BEFORE; AT 0: it lives on until it is told
to stop by SIGTERM.
"""

import itertools
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from redis.connection import AbstractConnection

from producer import loop
from tests.integration.producer.conftest import Server, Shelf, configured, numbered


def main() -> None:
    folder, prompts, at, before = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "before"
    numbers = itertools.count(1)
    connection: Any = AbstractConnection
    send = connection.send_packed_command

    def counted(self: Any, command: Any, check_health: bool = True) -> None:
        # `next` of a count is atomic: the upkeep's thread sends commands as well.
        number = next(numbers)
        if number == at and before:
            os.kill(os.getpid(), signal.SIGKILL)
        send(self, command, check_health)
        if number == at:
            os.kill(os.getpid(), signal.SIGKILL)

    connection.send_packed_command = counted
    stop = threading.Event()

    def told(_signal: int, _frame: object) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, told)
    config = configured(("A", 1_000_000), concurrency=2000)
    loop.produce(config, Server(folder).url, ["A"], stay=True, stop=stop, library=Shelf(numbered("A", prompts)))


if __name__ == "__main__":
    main()

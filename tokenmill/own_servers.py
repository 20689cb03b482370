"""The servers that `run` starts where none are named: a Redis or Valkey, and the simulated SGLang.

Whichever is killed is started again where it was; nobody else would.
"""

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from budget.errors import OutsideFault
from tokenmill.embedded import EmbeddedRedis
from tokenmill.runfile import RunFile, RunFileProblem, refuse_unknown
from workers.simulator.config import SimulatorConfig
from workers.simulator.process import SimulatorProcess

MAX_RESTARTS = 20


class OwnServers:
    """A run's own servers, as far as it has any.

    Args:
        redis: started already, or None where the run was given one.
        say: called with a sentence for people.
    """

    def __init__(self, file: RunFile, redis: EmbeddedRedis | None, say: Callable[[str], None]) -> None:
        self._file = file
        self._redis = redis
        self._simulator: SimulatorProcess | None = None
        self._say = say
        self._restarts = 0

    def simulate(self) -> str:
        """Start the simulated server; its URL."""
        self._simulator = SimulatorProcess.start(simulator_config(self._file))
        return self._simulator.url

    def look_after(self) -> None:
        """Start again whichever was killed.

        Raises:
            OutsideFault: one does not start again, or is killed over and over.
        """
        redis_died = self._redis is not None and not self._redis.running
        simulator_died = self._simulator is not None and self._simulator.process.poll() is not None
        if not redis_died and not simulator_died:
            return
        self._restarts += 1
        if self._restarts > MAX_RESTARTS:
            raise OutsideFault(
                "the run's own Redis or simulated SGLang ends again and again: see its log, then run again"
            )
        if redis_died and self._redis is not None:
            self._say("the run's own Redis was killed: started again, on what its file holds")
            self._redis.restart()
        if simulator_died and self._simulator is not None:
            self._say("the simulated SGLang was killed: started again")
            port = urlsplit(self._simulator.url).port or 0
            self._simulator = SimulatorProcess.start(msgspec.structs.replace(simulator_config(self._file), port=port))

    def stop(self) -> None:
        """End the simulated server; the Redis ends where it was started."""
        if self._simulator is not None:
            self._simulator.stop()


def simulator_config(file: RunFile) -> SimulatorConfig:
    """The simulated server of a run: its `[simulator]` table, on the run's own tokenizer.

    Raises:
        RunFileProblem: the table is not as it must be.
    """
    table = dict(file.simulator)
    refuse_unknown(table, [*SimulatorConfig.__struct_fields__, "slots"], "[simulator]", file.path)
    if "slots" in table:
        table["max_running_requests"] = table.pop("slots")
    table.setdefault("tokenizer", file.config.tokenizer)
    table.setdefault("model", Path(file.config.tokenizer).name)
    try:
        return msgspec.convert(table, SimulatorConfig)
    except (msgspec.ValidationError, ValueError) as error:
        raise RunFileProblem(f"{file.path}: [simulator]: {error}") from error

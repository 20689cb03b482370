"""Prompts to which a server that serves others answers with its own fault, again and again.

Such an answer (503, a full queue, an abort with a server's code) costs a prompt nothing, since it is mostly the
server's doing. But a prompt that gets nothing else would go round for ever. So it is counted, here in the
worker, and only while the fault is not everybody's: the server answered another prompt while this one was in
flight, or this one was alone there and the server answered the probe that brought it back. A server that is
down, or breaks under its load, answers nobody meanwhile, and nobody is counted.
"""

from workers import outcomes
from workers.flight import Flight
from workers.servers import Server

# So many faults of that kind, one after another, are one failed attempt.
FAULTS_A_FAILURE = 8
# Prompts whose faults are remembered; those that another worker took on are never heard of again.
_MOST = 10_000


class Stubborn:
    """The counts of one worker."""

    def __init__(self) -> None:
        self._faults: dict[str, int] = {}

    def judged(self, flight: Flight, outcome: "outcomes.Outcome") -> "outcomes.Outcome":
        """The outcome as it is to be settled: a server's fault becomes a failed attempt once it is this prompt's."""
        job, server = flight.lease.job, flight.attempt.server
        if not isinstance(outcome, outcomes.ServerFault):
            self._faults.pop(job, None)
            return outcome
        if outcome.reason != "busy" or not _serves_others(server, flight):
            return outcome
        if len(self._faults) >= _MOST:
            self._faults.clear()
        count = self._faults.pop(job, 0) + 1
        if count < FAULTS_A_FAILURE:
            self._faults[job] = count
            return outcome
        detail = f"{outcome.detail} ({count} times, while the server answered others)"
        return outcomes.Retry("server_fault", detail, outcome.wasted)


def _serves_others(server: Server, flight: Flight) -> bool:
    was_alone = flight.began_alone and server.sent == flight.sent_before + 1
    return server.answered > flight.answered_before or was_alone

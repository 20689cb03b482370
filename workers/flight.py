"""A job in flight: what is sent, how old it probably is, and the most that it can cost."""

from typing import Any

from budget.verbs import Lease
from workers.attempt import Attempt
from workers.contracts import Payload, worst_case


class Flight:
    """A job in flight.

    `reserved` is what the ledger was last told (0: nothing since it was claimed); `given_up` says why it was
    cancelled, "" where the worker leaves at once; `released`: it is being given back, so that a renewal that comes
    after that would lease it for nobody; `answered_before` and `sent_before` are what its server had
    answered and been sent when it began.
    """

    def __init__(self, lease: Lease, payload: Payload, attempt: Attempt, sampling: dict[str, Any]) -> None:
        self.lease = lease
        self.payload = payload
        self.attempt = attempt
        self.worst = worst_case(payload, sampling)
        self.reserved = 0
        server = attempt.server
        # It has been counted there as sent by now.
        self.answered_before, self.sent_before = server.answered, server.sent - 1
        self.began_alone = server.in_flight == 1
        self.settling = False
        self.released = False
        self.given_up = ""

    @property
    def age(self) -> int:
        """Tokens it has probably generated: those of its finished turns, and its seconds at its server's speed."""
        return min(self.worst, self.attempt.probable_tokens)

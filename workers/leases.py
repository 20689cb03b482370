"""Keeps a worker's leases: prolongs them, and revises what its jobs reserve.

All leases are prolonged at least every `renew_ms`; those of datasets near their caps in between, as often
as the forecast needs it (see `workers.reservations`). A Redis that is away leaves everything as it was:
the last known curves serve on, and what is leased anew when it answers is leased with them.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

from budget import ages, verbs
from budget.connections import RedisAway, RedisRefuses
from budget.forecast import bucket
from budget.ledger import AsyncLedger
from workers.flight import Flight
from workers.joining import Joined
from workers.reservations import Pace, Reservations
from workers.servers import Servers


def reservations_of(joined: Joined, datasets: Sequence[str]) -> Reservations:
    """The reservations of a worker that serves `datasets`, before it has heard Redis."""
    most = {name: int(joined.sampling(name)["max_new_tokens"]) for name in datasets}
    config = joined.config
    return Reservations(config.admission, most, config.timing.renew_ms / 1000, config.max_tokens_total)


class Leases:
    """The leases of one worker's flights.

    Args:
        lost: called with a flight whose answer another attempt has given: to be aborted.
        complain: called with a sentence when Redis does not answer.
    """

    def __init__(
        self,
        *,
        worker: str,
        joined: Joined,
        ledger: AsyncLedger,
        servers: Servers,
        datasets: Sequence[str],
        flights: Mapping[str, Flight],
        lost: Callable[[Flight], None],
        complain: Callable[[str], None],
    ) -> None:
        self.reservations = reservations_of(joined, datasets)
        self._worker = worker
        self._lease_ms = joined.config.timing.lease_ms
        self.ledger = ledger
        self._servers = servers
        self._datasets = list(datasets)
        self._flights = flights
        self._lost = lost
        self._complain = complain
        self._pace = Pace(joined.config.timing.renew_ms / 1000)

    async def learn(self, datasets: Sequence[str] | None = None) -> None:
        """Read what the forecast is made from; where Redis does not answer, the last known serves on."""
        if not self.reservations.forecasts:
            return
        try:
            self.reservations.learn(await ages.read_async(self.ledger.connection, datasets or self._datasets))
        except (RedisAway, RedisRefuses) as problem:
            self._complain(f"{problem}; reserving by what was last known")

    async def keep_for_ever(self) -> None:
        self._pace.whole(time.monotonic())
        while True:
            near = self.reservations.near_cap()
            fresh_s = self.reservations.pause_s(near, self._servers.speed)
            await asyncio.sleep(self._pace.pause(time.monotonic(), fresh_s))
            if self._pace.whole(time.monotonic()):
                await self.learn()
                await self._renew(list(self._flights.values()))
            else:
                await self.learn(near)
                if flights := [flight for flight in self._flights.values() if self._is_due(flight, near)]:
                    await self._renew(flights)

    def _is_due(self, flight: Flight, near: Sequence[str]) -> bool:
        if flight.lease.dataset not in near:
            return False
        reserved = self.reservations.revised(flight.lease.dataset, flight.age, flight.worst)
        return self.reservations.worth_telling(flight.reserved, reserved)

    async def _renew(self, flights: list[Flight]) -> None:
        """In calls of which none keeps Redis from others for long."""
        for first in range(0, len(flights), verbs.RENEW_BATCH):
            held = [flight for flight in flights[first : first + verbs.RENEW_BATCH] if not flight.released]
            if held:
                await self._renew_some(held)

    async def _renew_some(self, flights: list[Flight]) -> None:
        renewals = [self._renewal(flight) for flight in flights]
        call = verbs.renew(worker=self._worker, renewals=renewals, lease_ms=self._lease_ms)
        try:
            answers = await self.ledger(call)
        except (RedisAway, RedisRefuses) as problem:
            self._complain(f"{problem}; leases are renewed when it answers")
            return
        for flight, answer in zip(flights, answers, strict=True):
            if answer == "done" and not flight.settling:
                self._lost(flight)

    def _renewal(self, flight: Flight) -> verbs.Renewal:
        lease, age = flight.lease, flight.age
        flight.reserved = self.reservations.revised(lease.dataset, age, flight.worst)
        return verbs.Renewal(
            dataset=lease.dataset,
            job=lease.job,
            token=lease.token,
            reserved=flight.reserved,
            bucket=bucket(age),
            suspect=lease.suspect,
            adopted=lease.adopted,
        )

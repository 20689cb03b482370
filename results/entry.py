"""The run's entry in Redis and its twin in the output folder: published, compared, and mended.

What other parts note in the entry (the tokenizer's facts, the model's) is kept in the folder too, so that
a Redis that was emptied in mid-run gets it back and the files can be read without any Redis.
"""

import logging
from collections.abc import Mapping
from typing import Any

import msgspec
import redis

from budget import damage, keys, runbook
from budget.connections import translated
from budget.protocol import PROTOCOL
from results.folder import Cap, FolderState, OutputFolder, Prompts
from workers.contracts import RunConfig, fingerprint

log = logging.getLogger("tokenmill.collector")

# Of each dataset: cap, the file's cap, prompts, whether they are exhausted.
Budgets = list[tuple[bytes | None, bytes | None, bytes | None, bytes | None]]

# What the collector itself writes, and what lasts no longer than a Redis; the other fields are facts.
_OWN_FIELDS = frozenset(
    {"config", "name", "output_id", "protocol", "release", "max_tokens_total", *runbook.PASSING_FIELDS}
)


class Entry:
    """One run's entry.

    Raises (making one):
        BadFolder, Changed: the folder is another run's, or was filled under something else.
    """

    def __init__(self, connection: "redis.Redis", config: RunConfig, folder: OutputFolder) -> None:
        self._connection = connection
        self._config = config
        self._folder = folder
        self._fingerprints = {dataset.name: fingerprint(config, dataset.name) for dataset in config.datasets}
        self._state: FolderState = folder.check(config.name, self._fingerprints)

    def publish(self, *, start: bool = False) -> None:
        """Write the entry and the caps that are missing, at the start also those that the run file has anew.

        A cap that was raised in the file must be known before anybody looks whether all is finished.

        Raises:
            AnotherRun, OtherProtocol, Changed: the database is not this run's.
        """
        runbook.publish(
            self._connection,
            config=msgspec.json.encode(self._config),
            name=self._config.name,
            output_id=self._state.id,
            protocol=PROTOCOL,
            fingerprints=self._fingerprints,
            max_tokens_total=self._config.max_tokens_total,
            max_samples={dataset.name: dataset.max_samples for dataset in self._config.datasets},
        )
        if start:
            runbook.note_beginning(self._connection)
        known = {name: (held.cap, held.file) for name, held in self._state.caps.items()}
        runbook.restore_caps(self._connection, known)
        caps = {dataset.name: dataset.max_tokens for dataset in self._config.datasets}
        for name, written in runbook.apply_file_caps(self._connection, caps, only_missing=not start).items():
            if written.over:
                log.warning("%s: %s", name, written.said)
        self._save(fingerprints={**self._state.fingerprints, **self._fingerprints})

    def restore_facts(self) -> None:
        """Give an emptied Redis the facts again; only in mid-run, since a new start may bring others."""
        present = runbook.published(self._connection)
        lost = {name: value for name, value in self._state.facts.items() if name not in present}
        if lost:
            runbook.note_facts(self._connection, lost)

    def is_seeded(self) -> bool:
        """Whether this is the Redis that the files were seeded into, and still this run's; keeps its facts."""
        client: Any = self._connection
        with translated(), client.pipeline(transaction=False) as pipe:
            pipe.get(keys.READY)
            pipe.info("server")
            pipe.hgetall(keys.RUN)
            for dataset in self._config.datasets:
                pipe.hmget(keys.budget(dataset.name), "cap", "cap_file", "inputs", "exhausted")
            ready, server, entry, *budgets = pipe.execute()
        fields = {name.decode(): value.decode("utf-8", "replace") for name, value in entry.items()}
        if ready is None or ready.decode() != server["run_id"] or fields.get("output_id") != self._state.id:
            return False
        facts = {
            name: value
            for name, value in fields.items()
            if name not in _OWN_FIELDS and not name.startswith("fingerprint:")
        }
        self._save(
            facts={**self._state.facts, **facts},
            caps={**self._state.caps, **self._caps(budgets)},
            prompts={**self._state.prompts, **self._prompts(budgets)},
        )
        return True

    def _prompts(self, budgets: Budgets) -> dict[str, Prompts]:
        """What the producer has said of the prompts of those datasets that it has counted."""
        counts = {
            dataset.name: (damage.optional(inputs, keys.budget(dataset.name), "inputs"), exhausted == b"1")
            for dataset, (_, _, inputs, exhausted) in zip(self._config.datasets, budgets, strict=True)
        }
        return {
            name: Prompts(inputs=inputs, exhausted=exhausted)
            for name, (inputs, exhausted) in counts.items()
            if inputs is not None
        }

    def _caps(self, budgets: Budgets) -> dict[str, Cap]:
        """The caps as Redis has them, of the datasets whose cap it knows."""
        return {
            dataset.name: Cap(
                cap=damage.optional(cap, keys.budget(dataset.name), "cap"),
                file=damage.optional(in_file, keys.budget(dataset.name), "cap_file"),
            )
            for dataset, (cap, in_file, _, _) in zip(self._config.datasets, budgets, strict=True)
            if cap is not None and in_file is not None
        }

    @property
    def tokenizer(self) -> str | None:
        """The tokenizer's facts, as JSON; None before a producer has told them."""
        return self._state.facts.get("tokenizer")

    def set_ready(self, run_id: str) -> None:
        client: Any = self._connection
        with translated():
            client.set(keys.READY, run_id)

    def note_rates(self, rates: Mapping[str, float]) -> None:
        client: Any = self._connection
        with translated():
            client.hset(keys.RATES, mapping={name: f"{rate:.1f}" for name, rate in rates.items()})

    def _save(self, **changes: Any) -> None:
        state = msgspec.structs.replace(self._state, **changes)
        if state != self._state:
            self._folder.save(state)
            self._state = state

"""What `tokenmill doctor` looks at: each check is a few findings, and none of them changes anything.

The rules are those that the parts themselves start by (the tokenizer's, Redis', the servers'); here their
refusals are collected instead of ending at the first one.
"""

import asyncio
import platform
import shutil
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import msgspec
import redis

from budget import connections, environment, fleet, keys, runbook
from budget.errors import Problem
from producer.inspection import inspect
from results.errors import ResultsError
from results.folder import OutputFolder
from results.summary import file_totals
from tokenmill import embedded, watching
from workers.chat import ChatTokenizer
from workers.contracts import DatasetConfig, RunConfig, TokenizerFacts
from workers.servers import Server, Servers
from workers.sglang import Client

# Rows looked at of each prompt file.
ROWS = 300
# Of those, a share that is rejected and still nothing to speak of.
FEW_REJECTED = 0.05
# A line of results, for each of its answer's tokens: the ids, the text, and a share of the prompt.
BYTES_PER_TOKEN = 14
# A queued prompt in Redis, with RQ's hash around it.
BYTES_PER_JOB = 4_000
QUEUED_PER_DATASET = 2_000
SKEW_S = 5.0
READ_S = 60.0
GIB = 1 << 30

Verdict = Literal["pass", "warn", "fail"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at. `mend` is what to do about it, "" where there is nothing to do."""

    check: str
    verdict: Verdict
    said: str
    mend: str = ""


def _problem(check: str, problem: Problem) -> Finding:
    """Problems end in their own mend, after a colon or a semicolon, but for a Redis that the parts would wait for."""
    mend = ""
    if isinstance(problem, connections.RedisAway):
        is_loading = "loading" in str(problem)
        mend = "wait until it has" if is_loading else "start Redis, or correct TOKENMILL_REDIS_URL"
    return Finding(check=check, verdict="fail", said=str(problem), mend=mend)


def versions() -> Iterator[Finding]:
    names = ", ".join(f"{name} {version(name)}" for name in ("tokenmill", "rq", "redis", "httpx", "transformers"))
    yield Finding(check="versions", verdict="pass", said=f"Python {platform.python_version()}, {names}")


def tokenizer(config: RunConfig) -> "tuple[ChatTokenizer | None, list[Finding]]":
    """The run's tokenizer, if it can be loaded."""
    try:
        chat = ChatTokenizer.load(
            config.tokenizer, config.chat_template_kwargs, special_tokens_in_text=config.special_tokens_in_text
        )
    except Problem as problem:
        return None, [_problem("tokenizer", problem)]
    said = f"{config.tokenizer}: {chat.vocab_size:,} ids, ends at {', '.join(map(str, chat.eos_ids)) or 'no token'}"
    found = [Finding(check="tokenizer", verdict="pass", said=said)]
    if not chat.eos_ids:
        found.append(
            Finding(
                check="tokenizer",
                verdict="warn",
                said="it names no end token, so answers end only at max_new_tokens or where the server knows better",
                mend="add eos_token to its tokenizer_config.json or generation_config.json",
            )
        )
    try:
        chat.check()
    except Problem as problem:
        found.append(_problem("template", problem))
    else:
        system = chat.default_system()
        adds = f"; it adds a system prompt of its own: {system[:60]!r}" if system else ""
        found.append(Finding(check="template", verdict="pass", said=f"renders a plain question{adds}"))
    return chat, found


def prompts(config: RunConfig, chat: ChatTokenizer | None) -> Iterator[Finding]:
    """Each dataset's first rows, as they would be queued."""
    for dataset in config.datasets:
        check = f"prompts of {dataset.name}"
        try:
            seen = inspect(dataset, chat, seed=config.seed, rows=ROWS, samples=0)
        except Problem as problem:
            yield _problem(check, problem)
            continue
        said = f"{seen.rows:,} rows, {seen.prompts:,} of {seen.looked_at:,} looked at are prompts"
        if not seen.prompts:
            yield Finding(check=check, verdict="fail", said=said, mend=f"see why: tokenmill inspect {dataset.prompts}")
        elif seen.rejected > FEW_REJECTED * seen.looked_at:
            why = ", ".join(f"{reject.reason} {reject.count:,}" for reject in seen.rejects)
            yield Finding(
                check=check,
                verdict="warn",
                said=f"{said}; {why}",
                mend=f"see why: tokenmill inspect {dataset.prompts}",
            )
        else:
            yield Finding(check=check, verdict="pass", said=said)


def disk(config: RunConfig) -> Iterator[Finding]:
    """Whether what is still to be made fits beside what is there."""
    folder = Path(config.output)
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free
    try:
        totals = file_totals(folder, [dataset.name for dataset in config.datasets])
    except ResultsError as problem:
        yield _problem("disk", problem)
        return
    caps = [dataset.max_tokens for dataset in config.datasets]
    left = sum(
        max(0, cap - totals[dataset.name].tokens)
        for cap, dataset in zip(caps, config.datasets, strict=True)
        if cap is not None
    )
    needed = left * BYTES_PER_TOKEN
    said = f"{free / GIB:,.1f} GiB free for {config.output}, about {needed / GIB:,.1f} GiB still to be written"
    if needed > free:
        yield Finding(check="disk", verdict="fail", said=said, mend="free some space, or name another output folder")
    elif needed > free / 2 or None in caps:
        extra = "; datasets without a cap are not counted" if None in caps else ""
        yield Finding(check="disk", verdict="warn" if needed > free / 2 else "pass", said=said + extra)
    else:
        yield Finding(check="disk", verdict="pass", said=said)


def redis_server(config: RunConfig) -> Iterator[Finding]:
    """The Redis that the run would use, and what is in it."""
    url = environment.redis_url()
    if url is None:
        running = embedded.live_url(Path(config.output))
        if running is None:
            said = "none is named (TOKENMILL_REDIS_URL): `tokenmill run` starts one of its own"
            yield Finding(check="redis", verdict="pass", said=said)
            return
        url = running
    try:
        connection = connections.connect(url)
        warnings = connections.check_safe(connection)
        yield Finding(check="redis", verdict="pass", said=f"{connections.without_secret(url)} answers")
        for warning in warnings:
            yield Finding(check="redis", verdict="warn", said=warning)
        yield from _clock(connection)
        yield from _memory(connection, config)
        yield from _owner(connection, config)
    except Problem as problem:
        yield _problem("redis", problem)


def _clock(connection: "redis.Redis") -> Iterator[Finding]:
    client: Any = connection
    with connections.translated():
        seconds, micros = client.time()
    skew = time.time() - (seconds + micros / 1e6)
    if abs(skew) > SKEW_S:
        side = "ahead of" if skew > 0 else "behind"
        said = f"this machine is {abs(skew):,.0f} s {side} Redis: leases go by its clock, but times in records are off"
        yield Finding(check="clock", verdict="warn", said=said, mend="set the clocks (NTP)")
    else:
        yield Finding(check="clock", verdict="pass", said=f"{abs(skew):.1f} s from Redis'")


def _memory(connection: "redis.Redis", config: RunConfig) -> Iterator[Finding]:
    client: Any = connection
    with connections.translated():
        memory: dict[str, Any] = client.info("memory")
    limit, used = int(memory.get("maxmemory") or 0), int(memory["used_memory"])
    queued = QUEUED_PER_DATASET * len(config.datasets) * BYTES_PER_JOB
    said = f"{used / GIB:,.2f} GiB used of {f'{limit / GIB:,.2f} GiB' if limit else 'no limit'}"
    if limit and limit - used < queued:
        yield Finding(
            check="memory",
            verdict="warn",
            said=f"{said}; full queues take about {queued / GIB:,.2f} GiB",
            mend="raise maxmemory",
        )
    else:
        yield Finding(check="memory", verdict="pass", said=said)


def _owner(connection: "redis.Redis", config: RunConfig) -> Iterator[Finding]:
    client: Any = connection
    entry = runbook.published(connection)
    state = OutputFolder(config.output).state()
    runbook.refuse_another(entry, None if state is None else state.id)
    with connections.translated():
        collecting = client.exists(keys.COLLECTOR_LOCK)
    holds = f"holds run {entry.get('name')!r}{', which is being collected' if collecting else ''}"
    said = holds if entry else "free"
    yield Finding(check="database", verdict="pass", said=said)


def servers(config: RunConfig, chat: ChatTokenizer | None) -> Iterator[Finding]:
    """Every server, by all that a worker checks before its first job."""
    urls = _members(config)
    if not urls:
        said = "none is named in [sglang] servers: `tokenmill run` simulates one"
        yield Finding(check="servers", verdict="warn", said=said, mend="name your servers before a real run")
        return
    yield from asyncio.run(_servers(config, urls, chat))


def _members(config: RunConfig) -> list[str]:
    """The servers of the run file, with what `tokenmill servers` has said of them since the run began."""
    url = environment.redis_url() or embedded.live_url(Path(config.output))
    if url is None:
        return config.servers
    try:
        connection = connections.connect(url)
        watching.refuse_strangers(config, connection)
        return fleet.members(config.servers, fleet.wishes(connection))
    except Problem:  # which is among the findings about Redis
        return config.servers


async def _servers(config: RunConfig, urls: list[str], chat: ChatTokenizer | None) -> list[Finding]:
    client = Client(environment.sglang_api_key(), READ_S)
    pool = Servers(client, urls, 1.0, lambda: None)
    try:
        found = await asyncio.gather(*(_server(pool, server, config, chat) for server in pool.all))
    finally:
        await pool.close()
        await client.close()
    models = {str(server.model and server.model.name) for server in pool.all if server.model}
    findings = [finding for each in found for finding in each]
    if len(models) > 1:
        said = f"the servers serve different models: {', '.join(sorted(models))}"
        mend = "start them all on one model; a run has one"
        findings.append(Finding(check="servers", verdict="fail", said=said, mend=mend))
    return findings


async def _server(pool: Servers, server: Server, config: RunConfig, chat: ChatTokenizer | None) -> list[Finding]:
    check = f"server {server.url}"
    defaults = chat.generation_config if chat else {}
    samplings: list[dict[str, Any]] = []
    for dataset in config.datasets:
        if (sampling := {**defaults, **dataset.sampling}) not in samplings:
            samplings.append(sampling)
    facts = TokenizerFacts(vocab_size=1)
    if chat is not None:
        facts = TokenizerFacts(vocab_size=chat.vocab_size, probe_text=chat.probe_text, probe_ids=chat.probe_ids)
    try:
        reason = await pool.check(server, facts, samplings)
    except Problem as problem:
        return [_problem(check, problem)]
    if reason is not None:
        return [Finding(check=check, verdict="fail", said=reason, mend="start it, or mend [sglang] servers")]
    assert server.model is not None
    context = server.model.context_length
    said = f"answers; {server.model.name}, weights {server.model.weight_version or 'unnamed'}"
    found = [Finding(check=check, verdict="pass", said=said + (f", context {context:,}" if context else ""))]
    return found + [finding for dataset in config.datasets for finding in _context(check, dataset, context)]


def _context(check: str, dataset: DatasetConfig, context: int | None) -> list[Finding]:
    wanted = int(dataset.sampling["max_new_tokens"])
    if context is None or wanted < context:
        return []
    return [
        Finding(
            check=check,
            verdict="warn",
            said=f"max_new_tokens of {dataset.name} ({wanted:,}) does not fit its context of {context:,}: it is cut to "
            f"what each prompt leaves",
            mend="lower max_new_tokens, or start the server with a longer context",
        )
    ]

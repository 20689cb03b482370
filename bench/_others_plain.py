"""The script that one writes first: all prompts as tasks, a semaphore, a line of JSON appended for each answer.

With httpx or with aiohttp, whose pools are told to be as large as the semaphore: by default both stop at 100
connections. Started again, it leaves out the ids that its output file has.

    python bench/_others_plain.py httpx URL PROMPTS OUTPUT IN_FLIGHT MOST_TOKENS [SAMPLES]
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TextIO

import aiohttp
import httpx

TRIES = 3
Ask = Callable[[dict[str, Any]], Awaitable[Any]]


def wanted(prompts: Path, output: Path, samples: int | None) -> list[dict[str, Any]]:
    done: set[str] = set()
    if output.exists():
        for line in output.read_text().splitlines():
            try:
                done.add(json.loads(line)["id"])
            except ValueError:
                print("passed over a torn line")
    rows = [json.loads(line) for line in prompts.read_text().splitlines()]
    return [row for row in rows[:samples] if row["id"] not in done]


async def ask_all(ask: Ask, rows: list[dict[str, Any]], out: TextIO, in_flight: int, most: int) -> None:
    semaphore = asyncio.Semaphore(in_flight)

    async def one(row: dict[str, Any]) -> None:
        body = {"model": "m", "messages": row["messages"], "max_tokens": most, "return_token_ids": True}
        async with semaphore:
            for _ in range(TRIES):
                try:
                    answer = await ask(body)
                except (httpx.HTTPError, aiohttp.ClientError) as error:
                    print(f"{row['id']}: {error!r}")
                    continue
                out.write(json.dumps({"id": row["id"], "answer": answer}) + "\n")
                out.flush()
                return

    await asyncio.gather(*(one(row) for row in rows))


async def main(library: str, url: str, slots: int, most: int, rows: list[dict[str, Any]], out: TextIO) -> None:
    path = f"{url}/v1/chat/completions"
    if library == "httpx":
        limits = httpx.Limits(max_connections=slots, max_keepalive_connections=slots)
        async with httpx.AsyncClient(limits=limits, timeout=600) as client:

            async def by_httpx(body: dict[str, Any]) -> Any:
                return (await client.post(path, json=body)).raise_for_status().json()

            await ask_all(by_httpx, rows, out, slots, most)
    else:
        connector = aiohttp.TCPConnector(limit=slots)
        async with aiohttp.ClientSession(connector=connector, raise_for_status=True) as session:

            async def by_aiohttp(body: dict[str, Any]) -> Any:
                async with session.post(path, json=body) as response:
                    return await response.json()

            await ask_all(by_aiohttp, rows, out, slots, most)


if __name__ == "__main__":
    library, url, prompts, output, in_flight, most, *samples = sys.argv[1:]
    rows = wanted(Path(prompts), Path(output), int(samples[0]) if samples else None)
    with Path(output).open("a") as out:
        asyncio.run(main(library, url, int(in_flight), int(most), rows, out))

"""The HTTP client to SGLang, over aiohttp's transport: the only module that imports httpx.

httpx' own connection pool collapses with hundreds of requests in flight and dies of cancellations;
aiohttp's, without a limit, does neither. The number of slots is the limit. Requests go straight to the
transport: the cookies, redirects and merged settings of `httpx.AsyncClient` are a quarter of a request's
cost, and none is wanted. Nothing is retried here: what an answer or a broken connection means is judged
in `workers.outcomes`.
"""

import asyncio
import functools
import json
import os
import socket
from typing import Any, Literal, NamedTuple, cast

import aiohttp
import httpx
import httpx_aiohttp
import msgspec

from budget import failpoints

# SGLang closes idle connections after 5 s without saying so; ours are closed before.
KEEPALIVE_S = 4.0
CONNECT_S = 5.0


class Probes(NamedTuple):
    """When the kernel asks whether the other machine is still there, while nothing comes from it."""

    after_s: int
    every_s: int
    tries: int


# A machine that lost its power resets nothing; without probes its requests would wait until their deadline, for hours.
PROBES = Probes(after_s=30, every_s=10, tries=3)


class Broken(Exception):
    """No whole answer came back. `kind`: "refused" (never connected), "timeout", or "broke" (cut in flight)."""

    def __init__(self, kind: Literal["refused", "timeout", "broke"], detail: str) -> None:
        super().__init__(detail)
        self.kind: Literal["refused", "timeout", "broke"] = kind
        self.detail = detail


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """What a server says of itself. `context_length` is in tokens, None where it does not say."""

    name: str
    path: str
    tokenizer_path: str
    weight_version: str
    context_length: int | None


def _socket(address: Any) -> socket.socket:
    """A socket whose connection breaks when the other machine is gone."""
    family, kind, protocol = address[:3]
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
    for name, value in zip(names, PROBES, strict=True):
        if (option := getattr(socket, name, None)) is not None:  # macOS has not all of them
            made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made


_url = functools.lru_cache(maxsize=1024)(httpx.URL)  # a tenth of a request's cost is parsing it


def _broken(error: Exception) -> Broken:
    """aiohttp's transport maps a cut connection to httpx.ConnectTimeout, so the cause is what tells."""
    cause = error.__cause__
    text = str(error) or str(cause) or type(error).__name__
    if isinstance(cause, aiohttp.ClientConnectorError) or isinstance(error, httpx.ConnectError):
        number = cause.os_error.errno if isinstance(cause, aiohttp.ClientConnectorError) else None
        return Broken("refused", os.strerror(number).lower() if number and number > 0 else text)
    if isinstance(cause, TimeoutError) or isinstance(error, httpx.ReadTimeout):
        kind = "refused" if isinstance(cause, aiohttp.ConnectionTimeoutError) else "timeout"
        return Broken(kind, text)
    return Broken("broke", text)


class Client:
    """Requests to any number of SGLang servers; one per worker process, used on one event loop.

    Args:
        api_key: sent as a bearer token; never logged.
        read_s: the longest that a whole answer may take, in seconds.
    """

    def __init__(self, api_key: str | None, read_s: float) -> None:
        self._headers = {"content-type": "application/json"}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._transport = httpx_aiohttp.AiohttpTransport(
            trust_env=False,
            client=lambda: aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S, socket_factory=_socket),
                trust_env=False,
            ),
        )
        self._long = {"read": read_s, "connect": CONNECT_S}
        self._short = {"read": 10.0, "connect": CONNECT_S}

    async def close(self) -> None:
        await self._transport.aclose()

    async def generate(self, server: str, body: bytes, dataset: str = "") -> tuple[int, bytes]:
        """POST /generate. Returns (HTTP status, body).

        The dataset's name goes along as a header: real servers ignore it, proxies can log it, and the
        simulated one draws its answers' lengths by it.

        Raises:
            Broken: no whole answer came back.
        """
        return await self._send("POST", f"{server}/generate", body, self._long, {"x-tokenmill-dataset": dataset})

    async def abort(self, server: str, rid: str) -> None:
        """Ask the server to stop generating for a request that has been given up; best effort."""
        try:
            await self._send("POST", f"{server}/abort_request", msgspec.json.encode({"rid": rid}), self._short)
        except Broken:
            return

    async def get(self, server: str, path: str) -> tuple[int, dict[str, Any]]:
        """GET a JSON object: (status, object), empty where the body is none.

        Raises:
            Broken: no whole answer came back.
        """
        status, body = await self._send("GET", f"{server}{path}", None, self._short)
        return status, json_object(body)

    async def model(self, server: str) -> tuple[int, Model | None]:
        """What the server serves: (status, model), None unless the status is 200.

        Raises:
            Broken: no whole answer came back.
        """
        status, info = await self.get(server, "/model_info")
        if status == 404:  # before SGLang renamed it
            status, info = await self.get(server, "/get_model_info")
        if status != 200 or not info:
            return status, None
        _, listed = await self.get(server, "/v1/models")
        models: list[dict[str, Any]] = listed.get("data") or [{}]
        context = models[0].get("max_model_len")
        return status, Model(
            name=str(info.get("served_model_name") or info.get("model_path") or ""),
            path=str(info.get("model_path") or ""),
            tokenizer_path=str(info.get("tokenizer_path") or ""),
            weight_version=str(info.get("weight_version") or ""),
            context_length=context if isinstance(context, int) else None,
        )

    async def tokenize(self, server: str, text: str) -> list[int] | None:
        """The server's own token ids of a text, without special tokens; None where it cannot say.

        Raises:
            Broken: no whole answer came back.
        """
        body = msgspec.json.encode({"prompt": text, "add_special_tokens": False})
        status, answer = await self._send("POST", f"{server}/v1/tokenize", body, self._short)
        tokens: Any = json_object(answer).get("tokens") if status == 200 else None
        return cast(list[int], tokens) if isinstance(tokens, list) else None

    async def _send(
        self, method: str, url: str, body: bytes | None, limits: dict[str, float], headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        try:
            request = httpx.Request(
                method, _url(url), headers=self._headers | (headers or {}), content=body, extensions={"timeout": limits}
            )
            # The transport's own limit is for each read: an answer that drips would take for ever.
            async with asyncio.timeout(limits["read"]):
                answer = await self._transport.handle_async_request(request)
                if failpoints.ACTIVE and headers and (task := asyncio.current_task()):
                    failpoints.hit("after_headers", task.get_name())
                try:
                    content = await answer.aread()
                finally:
                    await answer.aclose()
        except TimeoutError as error:
            raise Broken("timeout", f"no whole answer in {limits['read']:g} s") from error
        except httpx.InvalidURL as error:
            raise Broken("refused", f"{url} is not a URL: {error}") from error
        except (httpx.HTTPError, aiohttp.ClientError, OSError) as error:
            raise _broken(error) from error
        return answer.status_code, content


def json_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a body; empty where it holds none."""
    try:
        value: Any = json.loads(body)
    except ValueError:
        return {}
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}

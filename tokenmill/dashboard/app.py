"""The dashboard's addresses: the page, its stream, the actions, the state as JSON, and the metrics."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from budget.errors import Exit, Problem
from tokenmill.dashboard import actions, metrics
from tokenmill.dashboard.feed import Feed
from tokenmill.dashboard.guard import Guard, Hosts

log = logging.getLogger("tokenmill.dashboard")

STATIC = Path(__file__).parent / "static"
MOST_STREAMS = 64
# A guess at the token costs so long, and only one is made at a time.
WRONG_S = 0.5


class Dashboard:
    """The answers of one dashboard."""

    def __init__(self, feed: Feed, token: str | None) -> None:
        self.feed = feed
        self._token = token
        self._streams = 0
        self._guesses = asyncio.Lock()

    async def page(self, request: Request) -> Response:
        return FileResponse(STATIC / "index.html", media_type="text/html")

    async def events(self, request: Request) -> Response:
        if self._streams >= MOST_STREAMS:
            return JSONResponse({"error": "too many pages are open; close some"}, 503)
        return StreamingResponse(self._counted(), media_type="text/event-stream")

    async def _counted(self) -> AsyncGenerator[bytes]:
        self._streams += 1
        try:
            async for event in self.feed.events():
                yield event
        finally:
            self._streams -= 1

    async def state(self, request: Request) -> Response:
        """As `status --json`."""
        look = self.feed.latest
        if look.status is None or look.news is not None:
            return JSONResponse({"error": look.news}, 503)
        return Response(msgspec.json.encode(look.status), media_type="application/json")

    async def metrics(self, request: Request) -> Response:
        text, kind = metrics.exposition(self.feed.latest)
        return Response(text, media_type=kind)

    async def act(self, request: Request) -> Response:
        action = actions.ACTIONS.get(request.path_params["name"])
        if action is None:
            return JSONResponse({"error": "there is no such action"}, 404)
        authorization = request.headers.get("authorization")
        if (problem := actions.refusal(self._token, authorization)) is not None:
            if self._token is not None:
                async with self._guesses:
                    await asyncio.sleep(WRONG_S)
            return JSONResponse({"error": problem}, 403)
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            return JSONResponse({"error": "an action takes JSON"}, 415)
        try:
            texts = actions.given(await _body(request))
            said = await asyncio.to_thread(action, self.feed.source, texts)
        except Problem as problem:
            return JSONResponse({"error": str(problem)}, 400 if problem.exit_code == Exit.USER else 503)
        log.info("on the dashboard: %s", said)
        self.feed.hurry()
        return JSONResponse({"said": said})


async def _body(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > actions.MOST_BYTES:
            raise actions.TooLong(f"an action takes at most {actions.MOST_BYTES} bytes")
    return body


def build(feed: Feed, token: str | None, hosts: Hosts) -> Starlette:
    """The ASGI application; while it runs, it looks at the run."""
    dashboard = Dashboard(feed, token)

    @asynccontextmanager
    async def looking(app: Starlette) -> AsyncGenerator[None]:
        task = asyncio.create_task(feed.go_on())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    return Starlette(
        routes=[
            Route("/", dashboard.page),
            Route("/events", dashboard.events),
            Route("/state.json", dashboard.state),
            Route("/metrics", dashboard.metrics),
            Route("/actions/{name}", dashboard.act, methods=["POST"]),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        middleware=[Middleware(Guard, hosts=hosts)],
        lifespan=looking,
    )

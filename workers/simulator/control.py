"""The other endpoints: health, information, and what an operator does to a running server.

/simulator/faults and /simulator/state are the only ones that a real server does not have.
"""

import asyncio
from typing import Any, Literal

import msgspec
from aiohttp import web

from workers.simulator import information
from workers.simulator.bodies import decode_body
from workers.simulator.config import SimulatorConfig
from workers.simulator.errors import ApiError, contract_error, validation_error
from workers.simulator.faults import Fault, FaultBox
from workers.simulator.journal import Journal
from workers.simulator.replies import hang, json_response
from workers.simulator.scheduler import Scheduler
from workers.simulator.vocabulary import Vocabulary

Status = Literal["starting", "up", "draining", "crashed"]
# After this long without a token the real health check gives up.
_HEALTH_TIMEOUT_S = 20.0
_FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. (When there are running or waiting requests, "
    "the operation will not be performed.)\n"
)


class FaultRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of POST /simulator/faults: the faults that replace those in force."""

    faults: list[Fault]


class Control:
    """Handlers of everything but /generate."""

    def __init__(
        self, config: SimulatorConfig, vocabulary: Vocabulary, scheduler: Scheduler, journal: Journal, faults: FaultBox
    ) -> None:
        self._config = config
        self._vocabulary = vocabulary
        self._scheduler = scheduler
        self._journal = journal
        self._faults = faults
        self.status: Status = "up"
        self.port = 0
        # Set by the server, which alone can close its listener.
        self.on_faults = lambda: None

    def add_routes(self, router: web.UrlDispatcher) -> None:
        for path, handler in {
            "/": self._root, "/health": self._health, "/health_generate": self._health, "/ready": self._ready,
            "/ping": self._ping, "/model_info": self._model_info, "/get_model_info": self._model_info,
            "/server_info": self._server_info, "/get_server_info": self._server_info, "/v1/loads": self._loads,
            "/v1/models": self._models, "/metrics": self._metrics, "/simulator/state": self._state,
            "/flush_cache": self._flush,
        }.items():  # fmt: skip
            router.add_get(path, handler, allow_head=False)
        for path, handler in {
            "/flush_cache": self._flush, "/abort_request": self._abort, "/pause_generation": self._pause,
            "/continue_generation": self._continue, "/slow_down": self._slow_down,
            "/simulator/faults": self._set_faults,
        }.items():  # fmt: skip
            router.add_post(path, handler)
        if self._vocabulary.has_tokenizer:
            router.add_post("/v1/tokenize", self._tokenize)

    def state(self) -> dict[str, Any]:
        """What GET /simulator/state shows."""
        total = self._journal.total
        in_flight_tokens = self._scheduler.tokens_in_flight()
        return {
            "status": self.status,
            "running": self._scheduler.engine.running,
            "waiting": self._scheduler.engine.waiting,
            "received": total.received,
            "served": total.finished,
            "aborted": total.aborted,
            "failed": total.failed,
            "generated_tokens": total.tokens + in_flight_tokens,
            "finished_tokens": total.finished_tokens,
            "in_flight_tokens": in_flight_tokens,
            "peak_in_flight": self._journal.peak_in_flight,
            "datasets": {name: msgspec.to_builtins(counts) for name, counts in self._journal.datasets.items()},
            "faults": [
                {**msgspec.to_builtins(fault), "hits": hits}
                for fault, hits in zip(self._faults.faults, self._faults.hits, strict=True)
            ],
        }

    async def _root(self, request: web.Request) -> web.StreamResponse:
        return json_response("SGLang is running")

    async def _ping(self, request: web.Request) -> web.StreamResponse:
        return web.Response()

    async def _ready(self, request: web.Request) -> web.StreamResponse:
        return web.Response(status=503 if self.status in ("starting", "draining") else 200)

    async def _health(self, request: web.Request) -> web.StreamResponse:
        if self.status == "crashed":
            await hang()
        if self.status in ("starting", "draining"):
            return web.Response(status=503)
        if self._scheduler.is_paused_by_request:
            await asyncio.sleep(_HEALTH_TIMEOUT_S / self._scheduler.scale)
            return web.Response(status=503)
        await asyncio.sleep(self._config.health_s / self._scheduler.scale)
        return web.Response(status=503 if self.status != "up" else 200)

    async def _model_info(self, request: web.Request) -> web.StreamResponse:
        return json_response(information.model_info(self._config))

    async def _server_info(self, request: web.Request) -> web.StreamResponse:
        return json_response(information.server_info(self._config, self._scheduler, self.port))

    async def _loads(self, request: web.Request) -> web.StreamResponse:
        return json_response(information.loads(self._config, self._scheduler, request.query.get("include", "")))

    async def _models(self, request: web.Request) -> web.StreamResponse:
        return json_response(information.models(self._config))

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text=information.metrics(self._config, self._scheduler, self._journal))

    async def _state(self, request: web.Request) -> web.StreamResponse:
        return json_response(self.state())

    async def _flush(self, request: web.Request) -> web.StreamResponse:
        if self._scheduler.in_flight:
            return web.Response(status=400, text="Flush cache failed.\n")
        return web.Response(text=_FLUSHED)

    async def _abort(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request, "abort_request", "AbortReq")
        rid, every = body.get("rid"), body.get("abort_all", False)
        if rid is not None and not isinstance(rid, str):
            raise self._instance_error(
                "abort_request", "AbortReq", body, "rid",
                {"type": "string_type", "msg": "Input should be a valid string", "input": rid},
            )  # fmt: skip
        if every:
            self._scheduler.abort_all()
        elif rid:
            self._scheduler.abort_rids(rid)
        return web.Response()

    async def _pause(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request, "pause_generation", "PauseGenerationReqInput")
        mode = body.get("mode", "abort")
        if mode not in ("abort", "retract", "in_place"):
            raise contract_error(f"invalid mode: {mode!r}, expected abort, retract or in_place")
        self._scheduler.pause("request")
        if mode == "abort":
            self._scheduler.abort_all()
        return json_response({"message": "Generation paused successfully.", "status": "ok"})

    async def _continue(self, request: web.Request) -> web.StreamResponse:
        self._scheduler.resume("request")
        return json_response({"message": "Generation continued successfully.", "status": "ok"})

    async def _slow_down(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request, "slow_down", "SlowDownReqInput")
        if "forward_sleep_time" not in body:
            missing = {"type": "missing", "msg": "Field required", "input": body}
            raise self._instance_error("slow_down", "SlowDownReqInput", body, "forward_sleep_time", missing)
        seconds: Any = body["forward_sleep_time"]
        if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds < 0):
            wrong = {"type": "float_type", "msg": "Input should be a valid number", "input": seconds}
            raise self._instance_error("slow_down", "SlowDownReqInput", body, "forward_sleep_time", wrong)
        self._scheduler.slow_down(seconds or 0.0)
        return json_response(None)

    async def _tokenize(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request, "tokenize", "TokenizeRequest")
        prompt: Any = body.get("prompt")
        if not isinstance(prompt, str):
            raise contract_error("prompt must be a string")
        tokens = self._vocabulary.encode(prompt, add_special_tokens=body.get("add_special_tokens", True) is True)
        return json_response({"tokens": tokens, "count": len(tokens), "max_model_len": self._config.context_length})

    async def _set_faults(self, request: web.Request) -> web.StreamResponse:
        try:
            wanted = msgspec.json.decode(await request.read(), type=FaultRequest)
        except msgspec.DecodeError as error:
            raise ApiError(400, {"error": f"these are not faults: {error}"}) from error
        self._faults.replace(wanted.faults)
        self.on_faults()
        return json_response(self.state())

    @staticmethod
    async def _body(request: web.Request, function: str, class_name: str) -> dict[str, Any]:
        route = f"{request.method} {request.path}"
        return decode_body(await request.read(), request.content_type, route, function, class_name)

    @staticmethod
    def _instance_error(
        function: str, class_name: str, body: dict[str, Any], field: str, detail: dict[str, Any]
    ) -> ApiError:
        """Pydantic's two answers to a wrong field of a msgspec class: not an instance, and the field."""
        first = {
            "type": "is_instance_of", "loc": ("body", f"is-instance[{class_name}]"),
            "msg": f"Input should be an instance of {class_name}", "input": body, "ctx": {"class": class_name},
        }  # fmt: skip
        where = ("body", f"function-after[build_struct(), {class_name}]", field)
        second = {"type": detail["type"], "loc": where, "msg": detail["msg"], "input": detail["input"]}
        return validation_error(f"POST /{function}", function, first, second)

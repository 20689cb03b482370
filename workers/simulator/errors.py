"""SGLang's ways of saying no, each in its own shape.

A client must tell them apart (a full queue is not a bad prompt), so the simulated server keeps all
five: the sampling contract's bare string, the request's message, FastAPI's validation, the HTTP
exception, and the plain text of a crash in a handler.
"""

from typing import Any


class ApiError(Exception):
    """An answer other than 200. `streamable`: with `stream: true` it comes as an event under status 200."""

    def __init__(self, status: int, body: Any, *, streamable: bool = False) -> None:
        super().__init__(f"{status}: {body}")
        self.status = status
        self.body = body
        self.streamable = streamable


class Poison(Exception):
    """The request kills the server: a token id outside the vocabulary, or a prompt without any token."""


def contract_error(message: str) -> ApiError:
    """A sampling parameter of an unknown name or a wrong type."""
    return ApiError(400, {"error": message})


def request_error(message: str) -> ApiError:
    """A request that is well formed and cannot be served."""
    return ApiError(400, {"error": {"message": message}}, streamable=True)


def unavailable(message: str) -> ApiError:
    """An HTTP exception of the scheduler's: the queue is full, a time-out."""
    return ApiError(503, {"object": "error", "message": message, "type": "503", "param": None, "code": 503})


def internal_error() -> ApiError:
    """An exception that no handler caught; plain text, not JSON."""
    return ApiError(500, "Internal Server Error")


def validation_error(route: str, function: str, *details: dict[str, Any]) -> ApiError:
    """FastAPI's validation of the body, which SGLang turns from 422 into 400 and into text."""
    count = f"{len(details)} validation error{'s' if len(details) > 1 else ''}"
    listed = "".join(f"\n  {detail}" for detail in details)
    message = f'{count}:{listed}\n\n  File "http_server.py", in {function}\n    {route} {list(details)}'
    return ApiError(400, {"object": "error", "message": message, "type": "Bad Request", "param": None, "code": 400})


def unauthorized() -> ApiError:
    return ApiError(401, {"error": "Unauthorized"})

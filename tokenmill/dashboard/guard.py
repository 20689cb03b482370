"""What stands before every answer: only known Host names, and headers that let the page load nothing but its own."""

import ipaddress
import socket
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
EVERYWHERE = frozenset({"0.0.0.0", "::"})

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


class Hosts:
    """The names under which the dashboard may be asked for.

    A web page anywhere can point a name of its own at this machine and read what answers (DNS rebinding); it
    cannot choose the name that its browser sends. So an address is safe where the dashboard listens on all of
    them, and a name must be known.
    """

    def __init__(self, host: str, more: Iterable[str] = ()) -> None:
        self._any_address = host in EVERYWHERE
        self.names = set(LOOPBACK) | {name.lower().rstrip(".") for name in more}
        if host not in EVERYWHERE:
            self.names.add(host.lower().rstrip("."))
        else:
            self.names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    def allow(self, header: str) -> bool:
        """Whether a Host header names one of them, with any port."""
        name = header.strip().lower()
        if name.startswith("["):
            name = name[1:].partition("]")[0]
        elif name.count(":") == 1:
            name = name.partition(":")[0]
        name = name.rstrip(".")
        return name in self.names or (self._any_address and _is_address(name))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Guard:
    """ASGI middleware: refuses other Host names, and puts the headers on every answer."""

    def __init__(self, app: ASGIApp, hosts: Hosts) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        asked_for = Headers(scope=scope).getlist("host")
        if len(asked_for) == 1 and self._hosts.allow(asked_for[0]):
            await self._app(scope, receive, send_with_headers)
            return
        refusal = JSONResponse(
            {"error": "this dashboard does not go by that name: start it with --host or --allow-host NAME"}, 421
        )
        await refusal(scope, receive, send_with_headers)

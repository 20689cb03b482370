"""A wire that a test can cut: between two processes, over TCP, with the faults that networks have.

It listens on a free port of 127.0.0.1 and passes bytes to a server (HOST:PORT, or the path of a unix
socket). Everything runs on an event loop in a thread of its own; the methods are called from the test.
"""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any


class _Link:
    """One connection through the proxy. `torn`: bytes were lost on the way, so it can never be whole again."""

    def __init__(self, near: asyncio.StreamWriter, far: asyncio.StreamWriter) -> None:
        self.torn = False
        self._ends = (near, far)

    def abort(self) -> None:
        for end in self._ends:
            end.transport.abort()


class TcpProxy:
    """A running proxy; `close` ends it. `address` stays the same for its whole life.

    `accepted` counts the connections that were tried, cut or not.
    """

    def __init__(self, target: str) -> None:
        self._target = target
        self.accepted = 0
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_cut = False
        self._loses_replies = False
        self._delay_s = 0.0
        self._loop = asyncio.new_event_loop()
        self._passing = asyncio.Event()
        self._passing.set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._wait(self._listen())
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    # -- faults

    def cut(self) -> None:
        """Reset every connection, and every new one."""
        self._do(self._cut)

    def blackhole(self) -> None:
        """Nothing passes any more and nobody is told; what was sent arrives after `heal`, as TCP sees to."""
        self._do(self._passing.clear)

    def lose_replies(self) -> None:
        """What is sent to the server arrives; what it answers does not, for ever: `heal` resets those connections."""
        self._do(lambda: setattr(self, "_loses_replies", True))

    def delay(self, seconds: float) -> None:
        """Every piece of data waits so long, in both directions."""
        self._do(lambda: setattr(self, "_delay_s", seconds))

    def heal(self) -> None:
        """The wire is as it was; connections that lost bytes are reset."""
        self._do(self._heal)

    def close(self) -> None:
        self._wait(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # -- inside the loop

    def _cut(self) -> None:
        self._is_cut = True
        for link in self._links:
            link.abort()

    def _heal(self) -> None:
        self._is_cut = self._loses_replies = False
        self._delay_s = 0.0
        for link in self._links:
            if link.torn:
                link.abort()
        self._passing.set()

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def _close(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.accepted += 1
        try:
            # Whoever connects during a blackhole waits for a handshake that does not come.
            await self._passing.wait()
            if not self._is_cut:
                await self._carry(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if "/" in self._target:
            far_reader, far_writer = await asyncio.open_unix_connection(self._target)
        else:
            host, _, port = self._target.rpartition(":")
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
        link = _Link(writer, far_writer)
        self._links.add(link)
        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(link, reader, far_writer, replies=False))
                pumps.create_task(self._pump(link, far_reader, writer, replies=True))
        except* OSError:
            pass
        finally:
            self._links.discard(link)
            far_writer.transport.abort()

    async def _pump(
        self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, replies: bool
    ) -> None:
        while data := await reader.read(65536):
            if self._delay_s:
                await asyncio.sleep(self._delay_s)
            await self._passing.wait()
            if replies and self._loses_replies:
                link.torn = True
                continue
            writer.write(data)
            await writer.drain()
        await self._passing.wait()
        if replies and link.torn:
            return
        with contextlib.suppress(OSError, RuntimeError):
            writer.write_eof()

    # -- between the threads

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    def _do(self, action: Any) -> None:
        async def run() -> None:
            action()

        self._wait(run())

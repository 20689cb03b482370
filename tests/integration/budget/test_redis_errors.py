"""What Redis' own errors become: one sentence each, that says whether waiting helps."""

import asyncio
from typing import Any

import pytest
import redis
import redis.asyncio

from budget import connections, keys
from budget.connections import RedisAway, RedisRefuses, RedisUnsafe, check_safe, connect
from budget.ledger import AsyncLedger
from tests.conftest import StartServer
from tests.ledgers import Rig, dump
from tests.support import wait_until


def test_a_killed_server_is_away_and_comes_back_with_all_it_said(start_server: StartServer) -> None:
    server = start_server(aof=True)
    with server.client(retry=None) as client:
        rig = Rig(client, ("A",))
        rig.cap("A", None)
        rig.enqueue("A", "A-1")
        lease = rig.lease()
        rig.commit(lease, 5)
        before = dump(client)
        server.kill()
        with pytest.raises(RedisAway, match="does not answer"):
            rig.claim()
        server.start()
        assert dump(client) == before
        assert rig.claim().status == "notready"
        assert rig.commit(lease, 5) == (False, 5)


def test_the_same_for_the_event_loop(start_server: StartServer) -> None:
    server = start_server()
    with server.client() as client:
        call = Rig(client).claim_call()

    async def ask() -> None:
        settings: dict[str, Any] = {"unix_socket_path": str(server.socket), "retry": None}
        asking: Any = redis.asyncio.Redis(**settings)
        ledger = AsyncLedger(asking)
        assert (await ledger(call)).status == "ok"
        server.kill()
        with pytest.raises(RedisAway):
            await ledger(call)
        await asking.aclose()

    asyncio.run(ask())


def test_a_wrong_password(start_server: StartServer) -> None:
    server = start_server(settings=["--requirepass", "sesame"])
    for password in (None, "wrong"):
        with (
            server.client(password=password, retry=None) as client,
            pytest.raises(RedisRefuses, match="user or password") as said,
        ):
            Rig(client)
        assert "sesame" not in str(said.value)
        assert "wrong'" not in str(said.value)
    with server.client(password="sesame") as client:
        Rig(client)


def test_a_disk_that_cannot_be_written(start_server: StartServer) -> None:
    server = start_server(settings=["--save", "3600 1000000", "--stop-writes-on-bgsave-error", "yes"])
    with server.client() as client:
        rig = Rig(client)
        rig.cap("A", None)
        # Root may write anywhere: a folder in the dump's place cannot be replaced by a file even so.
        (server.folder / "dump.rdb" / "x").mkdir(parents=True)
        rig.connection.bgsave()
        wait_until(lambda: client_info(client)["rdb_last_bgsave_status"] == "err")
        before = dump(client)
        with pytest.raises(RedisRefuses, match="MISCONF"):
            rig.enqueue("A", "A-1")
        assert dump(client) == before


def client_info(client: "redis.Redis") -> dict[str, Any]:
    asking: Any = client
    return asking.info("persistence")


def test_keys_of_somebody_else(rig: Rig) -> None:
    rig.connection.rpush(keys.done("A"), "x")
    rig.enqueue("B", "B-1")
    with pytest.raises(RedisRefuses, match=r"another type than Tokenmill's.*tokenmill reset"):
        rig.claim()


def test_out_of_memory(start_server: StartServer) -> None:
    server = start_server()
    with server.client() as client:
        rig = Rig(client)
        rig.cap("A", None)
        rig.connection.config_set("maxmemory", 1)
        with pytest.raises(RedisRefuses, match="out of memory"):
            rig.enqueue("A", "A-1")
        with pytest.raises(RedisRefuses, match="out of memory"):
            rig.cap("A", 1)


def test_a_server_that_is_still_loading(start_server: StartServer) -> None:
    # While it loads, a server looks at its clients after each 1,024 commands only.
    server = start_server(aof=True, settings=["--key-load-delay", "100"])
    with server.client(retry=None) as client:
        rig = Rig(client)
        with rig.connection.pipeline(transaction=False) as pipe:
            for number in range(20_000):
                pipe.set(f"filler:{number}", number)
            pipe.execute()
        call = rig.claim_call()
        server.stop()
        server.launch()

        def is_loading() -> bool:
            try:
                rig.run(call)
            except RedisAway as away:
                return "still loading" in str(away)
            raise AssertionError("it loaded before it could be asked")

        wait_until(is_loading, what="it says that it is loading")


@pytest.mark.parametrize(
    ("rule", "ends"),
    [("replicaof 127.0.0.1 1", False), ("config set maxmemory 1", False), ("acl setuser tm -set", True)],
)
def test_what_ends_a_worker_that_holds_answers(start_server: StartServer, rule: str, ends: bool) -> None:
    server = start_server()
    with server.client() as default, server.client(username="tm", password="x") as client:
        owner: Any = default
        owner.execute_command("ACL", "SETUSER", "tm", "on", "nopass", "~*", "+@all")
        owner.execute_command(*rule.split())
        asking: Any = client
        with pytest.raises(RedisRefuses) as said, connections.translated():
            asking.eval("return redis.call('SET', KEYS[1], 1)", 1, "a")
        assert connections.ends_a_worker(said.value) is ends


class TestSafety:
    def test_an_eviction_policy_is_refused(self, start_server: StartServer) -> None:
        server = start_server(settings=["--maxmemory-policy", "allkeys-lru"])
        with server.client() as client, pytest.raises(RedisUnsafe, match="allkeys-lru"):
            check_safe(client)

    def test_no_persistence_is_warned_of(self, start_server: StartServer) -> None:
        server = start_server()
        with server.client() as client:
            (warning,) = check_safe(client)
            assert "appendonly" in warning
            asking: Any = client
            asking.config_set("appendonly", "yes")
            assert check_safe(client) == []

    def test_waiting_ends(self, start_server: StartServer) -> None:
        server = start_server()
        server.kill()
        with pytest.raises(RedisAway, match="waited 0 s"), connections.translated_at_start(server.url, 0):
            raise AssertionError("not reached")

    def test_a_url_that_is_none(self) -> None:
        with pytest.raises(connections.BadRedisUrl) as said:
            connect("http://:secret@host")
        assert "secret" not in str(said.value)

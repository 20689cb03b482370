"""A user who lacks a right is told so at the start: in the middle of a script it would leave half of it done."""

from typing import Any

import pytest

from budget import redis_rights
from budget.connections import RedisRefuses, check_safe, translated
from tests.conftest import StartServer

NEEDED = sorted({name for names in redis_rights.NEEDED.values() for name in names} | set(redis_rights.KEYLESS))


def rules() -> list[str]:
    patterns = [f"~{pattern}" for pattern in redis_rights.NEEDED]
    allowed = [f"+{name}" for name in sorted(redis_rights.commands())]
    return ["on", "nopass", "resetkeys", *patterns, "resetchannels", "&rq:*", "-@all", "+@connection", *allowed]


def test_all_that_is_needed_is_asked_for_and_named(start_server: StartServer) -> None:
    server = start_server(aof=True)
    with server.client() as default, server.client(username="tm", password="x") as client:
        owner: Any = default

        def set_up(*more: str) -> None:
            owner.execute_command("ACL", "SETUSER", "tm", "reset", *rules(), *more)

        def refused() -> str:
            with pytest.raises(RedisRefuses, match=r"docs/operations\.md") as said:
                check_safe(client)
            return str(said.value)

        set_up()
        assert check_safe(client) == []
        for name in (*NEEDED, *redis_rights.WITH_AOF):
            set_up(f"-{name}")
            said = refused()
            assert f"give it +{name} (" in said or (name == "info" and "'info' command" in said), said
        for pattern in redis_rights.NEEDED:
            others = [f"~{other}" for other in redis_rights.NEEDED if other != pattern]
            set_up("resetkeys", *others)
            assert f"give it ~{pattern} (" in refused()
        set_up("resetchannels")
        assert "give it +subscribe &rq:* (" in refused()
        set_up("-eval")
        assert "'eval' command" in refused()


def test_what_a_script_says_of_a_missing_right_is_no_fault_of_redis(start_server: StartServer) -> None:
    server = start_server()
    with server.client() as default, server.client(username="tm", password="x") as client:
        asking: Any = client
        owner: Any = default
        owner.execute_command("ACL", "SETUSER", "tm", "on", "nopass", "~a", "-@all", "+@connection", "+eval", "+get")
        for script in ("return redis.call('SET', 'a', 1)", "return redis.call('GET', 'b')"):
            with pytest.raises(RedisRefuses, match="does not let this user"), translated():
                asking.eval(script, 0)

"""What Redis must let its user do: every command that Tokenmill sends, with the keys that it sends it for.

A right that is missed in the middle of a script leaves half of it done, and its repeat takes that for the whole:
so all of them are asked for before anything is written. The line in docs/operations.md is this list, and what
RQ's own tools need beside it.
"""

from collections.abc import Mapping
from typing import Any

# By the pattern of their keys. A script and what it calls are allowed each on its own.
NEEDED: Mapping[str, tuple[str, ...]] = {
    "run": ("hdel", "hexists", "hget", "hgetall", "hincrby", "hmget", "hset", "hsetnx", "unlink"),
    "run:*": ("get", "hgetall", "hmget", "hset", "pexpire", "set", "strlen", "unlink"),
    "budget:*": (
        *("get", "set", "incrby", "unlink", "watch"),
        *("hdel", "hexists", "hget", "hgetall", "hincrby", "hkeys", "hlen", "hmget", "hscan", "hset", "hsetnx"),
        *("hvals", "sadd", "scard", "srem", "sscan", "zadd", "zcard", "zcount", "zrange", "zrem"),
    ),
    "results:*": ("unlink", "xadd", "xdel", "xlen", "xread"),
    "lock:*": ("del", "exists", "get", "mget", "pttl", "set", "unlink", "watch"),
    "claim:*": ("get", "set", "unlink"),
    "server:*": ("hdel", "hexists", "hmget", "hset", "hsetnx", "unlink"),
    "probe:*": ("del", "get", "set", "unlink", "watch"),
    "suspect:*": ("del", "exists", "get", "set", "unlink", "watch"),
    "rq:*": (
        *("del", "exists", "expire", "mget", "type", "unlink"),
        *("hexists", "hget", "hgetall", "hmget", "hset"),
        *("llen", "lpop", "lpush", "lrange", "lrem", "rpush"),
        *("sadd", "scard", "smembers", "srem", "zadd", "zcard", "zrangebyscore", "zrem"),
    ),
}
# Channels on which RQ tells its workers what to do.
CHANNELS: Mapping[str, tuple[str, ...]] = {"rq:*": ("subscribe",)}
KEYLESS = ("info", "time", "multi", "exec", "evalsha", "scan")
# Only a Redis with an append-only file is asked to write it anew.
WITH_AOF = ("bgrewriteaof",)
# What RQ's stock workers and its tools send beside that, for their own keys.
OF_RQ = (
    *("blmove", "blpop", "discard", "hincrby", "hincrbyfloat", "lmove", "persist", "publish", "set", "sismember"),
    *("smove", "unsubscribe", "unwatch", "watch", "xrange", "xrevrange", "xtrim", "zcount", "zrange"),
    *("xadd", "zremrangebyscore", "zscore"),
)

# Words of commands whose key does not stand first.
_WORDS = {"xread": ("count", "1", "streams", "{}", "0"), "evalsha": ("none", "0")}

# Answers with the numbers of the questions that are refused; a command that the server does not know is refused too.
_ASK = """
if not redis.acl_check_cmd then return {} end
local refused, at, number = {}, 1, 1
while ARGV[at] do
  local words = {}
  for i = 1, tonumber(ARGV[at]) do words[i] = ARGV[at + i] end
  local known, allowed = pcall(redis.acl_check_cmd, unpack(words))
  if not known or not allowed then refused[#refused + 1] = number end
  at, number = at + 1 + #words, number + 1
end
return refused
"""


def commands() -> frozenset[str]:
    """All that the documented line must allow beside the connection's own."""
    named = [name for group in (*NEEDED.values(), *CHANNELS.values()) for name in group]
    return frozenset([*named, *KEYLESS, *WITH_AOF, *OF_RQ, "eval"])


def missing(client: Any, *, aof: bool) -> list[str]:
    """What this user may not do, in the words of an ACL rule; empty also where Redis cannot be asked (before 7.0).

    Raises:
        NoPermissionError: not even this may be asked.
    """
    questions = [(f"~{pattern}", name) for pattern, names in NEEDED.items() for name in names]
    questions += [(f"&{pattern}", name) for pattern, names in CHANNELS.items() for name in names]
    questions += [("", name) for name in (*KEYLESS, *(WITH_AOF if aof else ()))]
    words: list[str] = []
    for subject, name in questions:
        sample = subject[1:].replace("*", "tokenmill")
        rest = [word.format(sample) for word in _WORDS.get(name, ("{}",) if subject else ())]
        words += [str(1 + len(rest)), name, *rest]
    numbers: list[int] = client.eval(_ASK, 0, *words)
    refused = [questions[number - 1] for number in numbers]
    return _as_rules(questions, refused)


def _as_rules(questions: list[tuple[str, str]], refused: list[tuple[str, str]]) -> list[str]:
    """A command that is refused with all keys lacks itself, keys that are refused to all commands lack themselves."""
    allowed = set(questions) - set(refused)
    subjects = {subject for subject, _ in allowed}
    usable = {name for _, name in allowed}
    rules: dict[str, None] = {}
    for subject, name in refused:
        if name not in usable and (subject in subjects or not subject):
            rules[f"+{name}"] = None
        elif subject not in subjects and not subject.startswith("&"):
            rules[subject] = None
        else:
            rules[f"+{name} {subject}"] = None
    return list(rules)

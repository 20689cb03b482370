"""`rules.complete` and the prelude's `complete` are one rule in two languages."""

from typing import Any

import redis
from hypothesis import given
from hypothesis import strategies as st

from budget import keys, rules
from budget.ledger import source

# The prelude as every verb gets it, and in place of a verb: the reason, or an empty string.
SCRIPT = source("drop").split("-- Drop up to")[0] + "return complete(facts(block(2)), totals(KEYS[1], 15, 2)) or ''"

amounts = st.integers(0, 5)
maybe = st.one_of(st.none(), amounts)


@st.composite
def cases(draw: st.DrawFn) -> tuple[rules.Facts, int, int | None]:
    facts = rules.Facts(
        spent=draw(amounts),
        cap=draw(maybe),
        open=draw(st.booleans()),
        committed=draw(amounts),
        max_samples=draw(maybe),
        full=draw(st.booleans()),
        exhausted=draw(st.booleans()),
    )
    return facts, draw(amounts), draw(maybe)


def test_both_say_the_same(connection: "redis.Redis") -> None:
    client: Any = connection

    @given(cases())
    def same(case: tuple[rules.Facts, int, int | None]) -> None:
        facts, other_spent, total_cap = case
        if not facts.open and facts.cap is not None:
            return  # A cap makes it open.
        client.flushall()
        fields: dict[str, str | int] = {"committed": facts.committed}
        if facts.open:
            fields["cap"] = "none" if facts.cap is None else facts.cap
        if facts.max_samples is not None:
            fields["max_samples"] = facts.max_samples
        for name in ("full", "exhausted"):
            if getattr(facts, name):
                fields[name] = "1"
        client.hset(keys.budget("A"), mapping=fields)
        client.set(keys.spent("A"), facts.spent)
        client.set(keys.spent("B"), other_spent)
        if total_cap is not None:
            client.hset(keys.RUN, "max_tokens_total", total_cap)
        handed = [keys.RUN, *keys.block("A"), keys.spent("A"), keys.budget("A"), keys.spent("B"), keys.budget("B")]
        answer = client.eval(SCRIPT, len(handed), *handed).decode() or None
        assert answer == rules.complete(facts, facts.spent + other_spent, total_cap)

    same()


def test_finished_needs_everything_gone() -> None:
    facts = rules.Facts(spent=10, cap=10)
    assert rules.finished(facts)
    assert not rules.finished(rules.Facts(spent=10, cap=10, queued=1))
    assert not rules.finished(rules.Facts(spent=10, cap=10, leased=1))
    assert not rules.finished(rules.Facts(spent=10, cap=10, waiting=1))
    assert not rules.finished(rules.Facts(spent=9, cap=10))

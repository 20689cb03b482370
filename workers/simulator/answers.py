"""What the simulated model says: a pure function of (seed, prompt, sampling).

Not of the request's id, its time or its neighbours: a request that is repeated anywhere gets the same
answer, which is what makes "nothing lost, nothing counted twice" testable to the token. Only the length
is drawn at once; the ids are made when the answer is due, so that a thousand long answers in flight cost
no memory.
"""

import hashlib
import re
from array import array

import msgspec

from workers.simulator.config import SimulatorConfig
from workers.simulator.sampling import Sampling
from workers.simulator.vocabulary import Vocabulary


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """An answer before it is generated: how long it is, why it ends, and the key that its ids come from.

    `eos_at_end`: the last id is the end token. `matched` is None for an answer that was cut.
    """

    key: int
    length: int
    matched: int | str | None
    eos_at_end: bool = False
    all_eos: bool = False

    @property
    def finish_reason(self) -> dict[str, object]:
        if self.matched is None:
            return {"type": "length", "length": self.length}
        return {"type": "stop", "matched": self.matched}


def digest(input_ids: list[int]) -> bytes:
    """What identifies a prompt."""
    return hashlib.blake2b(array("q", input_ids).tobytes(), digest_size=16).digest()


def plan_answer(
    prompt: bytes, prompt_tokens: int, sampling: Sampling, dataset: str, index: int, config: SimulatorConfig,
    vocabulary: Vocabulary,
) -> Plan:  # fmt: skip
    """The answer to a prompt; `index` tells apart the samples of one request with n > 1."""
    label = f"{config.seed}:{sampling.sampling_seed}:{index}".encode()
    key = int.from_bytes(hashlib.blake2b(prompt + label, digest_size=8).digest(), "big")
    # One token of slack beyond the prompt and its successor, as the real scheduler keeps.
    room = config.context_length - prompt_tokens - 2
    limit = room if sampling.max_new_tokens is None else min(sampling.max_new_tokens, max(room, 0))
    forced = (sampling.logit_bias or {}).get(vocabulary.eos_id, 0.0) >= 100
    drawn = 1 if forced else config.length_of(dataset).draw(key)
    drawn = max(drawn, sampling.min_new_tokens + 1)
    if sampling.ignore_eos or drawn > limit:
        plan = Plan(key=key, length=limit, matched=None, all_eos=forced and sampling.ignore_eos)
    else:
        plan = Plan(key=key, length=drawn, matched=vocabulary.eos_id, eos_at_end=True)
    if sampling.stop_token_ids or sampling.stop or sampling.stop_regex:
        return _stop_early(plan, sampling, vocabulary)
    return plan


def output_ids(plan: Plan, count: int, vocabulary: Vocabulary) -> list[int]:
    """The first `count` ids of the answer."""
    count = min(count, plan.length)
    if plan.all_eos:
        return [vocabulary.eos_id] * count
    ids = vocabulary.draw(plan.key, count)
    if plan.eos_at_end and count == plan.length:
        ids[-1] = vocabulary.eos_id
    return ids


def output_text(plan: Plan, ids: list[int], sampling: Sampling, vocabulary: Vocabulary) -> str:
    """The text of these ids, without what stopped it unless `no_stop_trim` asks for that."""
    ended = len(ids) == plan.length and plan.matched is not None
    if ended and isinstance(plan.matched, int) and not sampling.no_stop_trim:
        ids = ids[:-1]
    text = vocabulary.decode(ids, skip_special=sampling.skip_special_tokens)
    if ended and isinstance(plan.matched, str) and not sampling.no_stop_trim:
        found = _find(text, plan.matched, plan.matched in sampling.stop)
        text = text if found is None else text[: found[0]]
    return text


def _find(text: str, stop: str, literal: bool) -> tuple[int, int] | None:
    match = re.search(re.escape(stop) if literal else stop, text)
    return None if match is None else match.span()


def _stop_early(plan: Plan, sampling: Sampling, vocabulary: Vocabulary) -> Plan:
    """The plan, ended at the first stop token, string or regex beyond min_new_tokens that its text has."""
    ids = output_ids(plan, plan.length, vocabulary)
    best = plan
    stop_ids = set(sampling.stop_token_ids)
    for at, token in enumerate(ids):
        if token in stop_ids and at >= sampling.min_new_tokens:
            best = Plan(key=plan.key, length=at + 1, matched=token)
            break
    stops = [(stop, True) for stop in sampling.stop] + [(stop, False) for stop in sampling.stop_regex]
    for stop, literal in stops:
        low, high = sampling.min_new_tokens + 1, best.length
        if high < low or _find(vocabulary.decode(ids[:high]), stop, literal) is None:
            continue
        while low < high:
            middle = (low + high) // 2
            if _find(vocabulary.decode(ids[:middle]), stop, literal) is None:
                low = middle + 1
            else:
                high = middle
        # A tie goes to the string: the token that ends here is part of what it matched.
        best = Plan(key=plan.key, length=low, matched=stop)
    return best

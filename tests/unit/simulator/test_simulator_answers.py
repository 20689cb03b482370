"""Lengths, ids and text: what an answer is made of, and that nothing but the prompt decides it."""

import statistics

import pytest

from workers.simulator.answers import Plan, digest, output_ids, output_text, plan_answer
from workers.simulator.config import SimulatorConfig
from workers.simulator.lengths import LengthSpec, parse_length
from workers.simulator.sampling import Sampling
from workers.simulator.vocabulary import Vocabulary

VOCABULARY = Vocabulary(2048, 2)
PROMPT = [100, 200, 300]


def _config(mean: float = 30, **changes: object) -> SimulatorConfig:
    lengths = {"*": LengthSpec(shape="constant", mean=mean)}
    return SimulatorConfig(vocab_size=2048, context_length=2048, lengths=lengths, **changes)  # pyright: ignore[reportArgumentType]


def _plan(
    sampling: Sampling, config: SimulatorConfig | None = None, prompt: list[int] = PROMPT, index: int = 0
) -> Plan:
    return plan_answer(digest(prompt), len(prompt), sampling, "", index, config or _config(), VOCABULARY)


@pytest.mark.parametrize(
    "spec",
    [
        LengthSpec(mean=4000, sigma=0.6),
        LengthSpec(shape="bimodal", mean=1500, sigma=0.3),
        LengthSpec(shape="uniform", mean=700, sigma=0.5),
        LengthSpec(shape="constant", mean=12),
    ],
)
def test_the_mean_is_the_mean_of_the_whole_distribution(spec: LengthSpec) -> None:
    drawn = [spec.draw(key) for key in range(20_000)]
    assert statistics.fmean(drawn) == pytest.approx(spec.mean, rel=0.03)
    assert min(drawn) >= 1
    assert drawn[:100] == [spec.draw(key) for key in range(100)]


def test_a_bimodal_length_has_two_modes() -> None:
    spec = LengthSpec(shape="bimodal", mean=1400, sigma=0.0, long_share=0.2, long_ratio=10)
    assert {spec.draw(key) for key in range(200)} == {500, 5000}


def test_the_command_lines_form_of_a_length() -> None:
    assert parse_length("B2=lognormal:4000:0.6") == ("B2", LengthSpec(mean=4000, sigma=0.6))
    assert parse_length("*=constant:12") == ("*", LengthSpec(shape="constant", mean=12))
    assert parse_length("a=bimodal:900:0.3:0.1:20")[1].long_ratio == 20


@pytest.mark.parametrize("text", ["", "a", "=constant:1", "a=constant", "a=round:5", "a=constant:x", "a=constant:0"])
def test_a_length_that_is_none_is_refused_in_words(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_length(text)


def test_fewer_ids_are_a_prefix_of_more() -> None:
    whole = VOCABULARY.draw(7, 101)
    assert all(VOCABULARY.draw(7, count) == whole[:count] for count in range(102))
    assert VOCABULARY.eos_id not in whole
    assert all(0 <= token < 2048 for token in whole)


def test_a_natural_stop_ends_with_the_end_token_that_the_text_does_not_show() -> None:
    plan = _plan(Sampling())
    ids = output_ids(plan, plan.length, VOCABULARY)
    assert plan.finish_reason == {"type": "stop", "matched": 2}
    assert len(ids) == plan.length == 30
    assert ids[-1] == 2
    assert output_text(plan, ids, Sampling(), VOCABULARY) == " ".join(map(str, ids[:-1]))
    untrimmed = Sampling(no_stop_trim=True, skip_special_tokens=False)
    assert output_text(plan, ids, untrimmed, VOCABULARY).endswith(" 2")


def test_an_answer_that_is_too_long_is_cut() -> None:
    plan = _plan(Sampling(max_new_tokens=29))
    assert plan.finish_reason == {"type": "length", "length": 29}
    assert 2 not in output_ids(plan, 29, VOCABULARY)
    assert _plan(Sampling(max_new_tokens=30)).matched == 2


def test_limits_of_the_length() -> None:
    assert _plan(Sampling(min_new_tokens=40)).length == 41
    assert _plan(Sampling(ignore_eos=True)).finish_reason == {"type": "length", "length": 128}
    assert _plan(Sampling(max_new_tokens=0)).finish_reason == {"type": "length", "length": 0}
    assert _plan(Sampling(max_new_tokens=None), _config(mean=9999)).length == 2048 - 3 - 2


def test_an_answer_belongs_to_seed_prompt_sampling_seed_and_sample() -> None:
    keys = [
        _plan(Sampling()).key,
        _plan(Sampling(sampling_seed=1)).key,
        _plan(Sampling(), index=1).key,
        _plan(Sampling(), prompt=[100, 200]).key,
        _plan(Sampling(), _config(seed=1)).key,
    ]
    assert len(set(keys)) == len(keys)
    assert _plan(Sampling(max_new_tokens=5)).key == keys[0]


def test_a_stop_token_ends_the_answer_and_is_kept() -> None:
    ids = output_ids(_plan(Sampling()), 30, VOCABULARY)
    plan = _plan(Sampling(stop_token_ids=(ids[9],)))
    assert plan.finish_reason == {"type": "stop", "matched": ids[9]}
    assert output_ids(plan, plan.length, VOCABULARY) == ids[: ids.index(ids[9]) + 1]


@pytest.mark.parametrize(("stop", "regex"), [(True, False), (False, True)])
def test_a_stop_string_ends_the_answer_and_is_trimmed(stop: bool, regex: bool) -> None:
    ids = output_ids(_plan(Sampling()), 30, VOCABULARY)
    text = f" {ids[9]} {ids[10]}"
    sampling = Sampling(stop=(text,) if stop else (), stop_regex=(text,) if regex else ())
    plan = _plan(sampling)
    assert plan.finish_reason == {"type": "stop", "matched": text}
    assert plan.length == 11
    assert output_text(plan, ids[:11], sampling, VOCABULARY) == " ".join(map(str, ids[:9]))


def test_an_end_token_forced_by_its_bias() -> None:
    assert _plan(Sampling(logit_bias={2: 1000.0})).length == 1
    ignoring = _plan(Sampling(logit_bias={2: 1000.0}, ignore_eos=True, max_new_tokens=4))
    assert output_ids(ignoring, 4, VOCABULARY) == [2, 2, 2, 2]


def test_a_large_vocabulary_is_sampled_and_never_left() -> None:
    vocabulary = Vocabulary(150_000, 2)
    ids = vocabulary.draw(1, 10_000)
    assert max(ids) > 65_536
    assert all(0 <= token < 150_000 for token in ids)

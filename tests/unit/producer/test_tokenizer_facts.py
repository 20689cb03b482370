"""What the producer publishes of the tokenizer, as a worker reads it."""

import json
from pathlib import Path

import msgspec

from producer.prompt_set import Files
from workers.contracts import DatasetConfig, RunConfig, TokenizerFacts

EXAMPLE = Path(__file__).parents[3] / "examples" / "tokenizer"


def test_a_worker_is_told_everything_it_checks_a_server_by() -> None:
    dataset = DatasetConfig(name="A1", prompts="none.jsonl", max_tokens=None)
    files = Files(RunConfig(name="r", output="out", tokenizer=str(EXAMPLE), datasets=[dataset]))
    published = json.dumps(files.tokenizer_facts())
    facts = msgspec.json.decode(published, type=TokenizerFacts)
    assert files.tokenizer_facts().keys() == set(TokenizerFacts.__struct_fields__)
    assert (facts.vocab_size, facts.eos_ids, facts.context_length) == (2000, [2], files.tokenizer.context_length)
    assert facts.probe_ids == files.tokenizer.probe_ids != []
    assert "<|im_start|>" in facts.probe_text
    assert facts.thinking is None

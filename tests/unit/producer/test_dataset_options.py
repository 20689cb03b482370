"""What a run file says of a dataset's rows, and what of it must not change while answers are collected."""

from pathlib import Path

import pytest

from tokenmill.runfile import RunFileProblem, load
from workers.contracts import DatasetConfig, RunConfig, fingerprint

HEAD = '[model]\ntokenizer = "t"\n[[dataset]]\nname = "D"\nprompts = "p.csv"\nmax_tokens = 10\n'


def run_file(tmp_path: Path, more: str = "") -> Path:
    path = tmp_path / "run.toml"
    path.write_text(HEAD + more)
    return path


def test_fields_and_history(tmp_path: Path) -> None:
    config = load(run_file(tmp_path, 'fields = { prompt = "q.0", header = true }\nhistory = "keep"\n')).config
    assert config.datasets[0].fields == {"prompt": "q.0", "header": True}
    assert config.datasets[0].history == "keep"
    plain = load(run_file(tmp_path)).config
    assert (plain.datasets[0].fields, plain.datasets[0].history, plain.special_tokens_in_text) == ({}, "turns", False)
    changed = load(run_file(tmp_path), ["dataset.D.fields.prompt=q", "model.special_tokens_in_text=true"]).config
    assert changed.datasets[0].fields == {"prompt": "q"}
    assert changed.special_tokens_in_text


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ('fields = { promt = "q" }', r"fields of \[\[dataset\]\] D: unknown key promt: did you mean prompt\?"),
        ('fields = { prompt = "q", turns = "t" }', "prompt and turns are both named"),
        ('history = "drop"', r"history in \[\[dataset\]\] D is 'drop': give \"turns\" or \"keep\""),
    ],
)
def test_mistakes_are_named(tmp_path: Path, more: str, says: str) -> None:
    with pytest.raises(RunFileProblem, match=says):
        load(run_file(tmp_path, more))


def test_only_what_differs_from_the_default_is_in_a_fingerprint() -> None:
    def of(special: bool = False, **more: object) -> dict[str, str]:
        dataset = DatasetConfig(name="D", prompts="p", max_tokens=1, **more)  # pyright: ignore[reportArgumentType]
        config = RunConfig(name="r", output="o", tokenizer="t", datasets=[dataset], special_tokens_in_text=special)
        return fingerprint(config, "D")

    before = {"tokenizer", "chat_template_kwargs", "sampling", "prompts", "truncated"}
    assert set(of()) == before
    assert of(fields={"prompt": "q", "id": "i"})["fields"] == '{"id":"i","prompt":"q"}'
    assert of(history="keep")["history"] == "keep"
    assert of(special=True)["special_tokens_in_text"] == "true"

"""What is wrong in a run file or on the command line: exit code 2 and one sentence that names it and the mend."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e_support import Ended, Job, prompts

Edit = Callable[[Job], Any]

NOWHERE = "redis://127.0.0.1:1/0"


def one_sentence(ended: Ended, *words: str, code: int = 2) -> None:
    assert ended.code == code, ended.out + ended.err
    assert len(ended.err.splitlines()) == 1, ended.err
    assert ended.err.startswith("tokenmill: ")
    assert "a fault in Tokenmill itself" not in ended.err
    for word in words:
        assert word in ended.err


def put(table: str, key: str, value: Any) -> Edit:
    return lambda job: job.tables.setdefault(table, {}).__setitem__(key, value)


def both(*edits: Edit) -> Edit:
    return lambda job: [edit(job) for edit in edits]


def put_dataset(key: str, value: Any) -> Edit:
    return lambda job: job.datasets["A1"].__setitem__(key, value)


def without(table: str) -> Edit:
    return lambda job: job.tables.pop(table)


ROWS: dict[str, tuple[Edit, list[str]]] = {
    "a mistyped table": (put("modle", "x", 1), ["modle", "did you mean model?"]),
    "a mistyped key in [run]": (
        put("run", "max_token_total", 1),
        ["max_token_total", "did you mean max_tokens_total?"],
    ),
    "a mistyped key in [model]": (put("model", "tokeniser", "x"), ["tokeniser", "did you mean tokenizer?"]),
    "a mistyped key in [sglang]": (put("sglang", "server", []), ["[sglang]", "did you mean servers?"]),
    "a mistyped key in [sampling]": (put("sampling", "temprature", 1), ["did you mean temperature?"]),
    "another API's name in [sampling]": (put("sampling", "max_tokens", 1), ["max_tokens", "max_new_tokens"]),
    "a strange key in [sampling]": (put("sampling", "zzz", 1), ["zzz", "known are", "top_p"]),
    "a mistyped key in [[dataset]]": (put_dataset("prompt", "x"), ["[[dataset]] A1", "did you mean prompts?"]),
    "a mistyped key in a dataset's sampling": (put_dataset("sampling", {"top_q": 1}), ["A1", "did you mean top_"]),
    "a mistyped key in [timing]": (put("timing", "lease", 100), ["[timing]", "did you mean lease_ms?"]),
    "no tokenizer": (without("model"), ["[model]", "tokenizer is missing"]),
    "no dataset": (lambda job: job.datasets.clear(), ["no [[dataset]]"]),
    "a dataset without prompts": (lambda job: job.datasets["A1"].pop("prompts"), ["A1", "prompts is missing"]),
    "two datasets of one name": (
        lambda job: job.datasets.__setitem__("again", dict(job.datasets["A1"])),
        ["two datasets named A1"],
    ),
    "a name that RQ cannot take": (put_dataset("name", "Human Eval"), ["'Human Eval'", "letters, digits, _ and -"]),
    "a name with a slash": (put_dataset("name", "../A1"), ["'../A1'"]),
    "a negative cap": (put_dataset("max_tokens", -5), ["A1", "-5", "0 or more"]),
    "a negative cap for all": (put("run", "max_tokens_per_dataset", -5), ["-5", "0 or more"]),
    "a cap that is a word": (put_dataset("max_tokens", "many"), ["A1", "max_tokens"]),
    "a cap that is a fraction": (put_dataset("max_tokens", 1.5), ["A1", "max_tokens"]),
    "no cap at all": (lambda job: job.tables["run"].pop("max_tokens_per_dataset"), ["A1 has no budget"]),
    "a negative total": (put("run", "max_tokens_total", -1), ["max_tokens_total", "-1"]),
    "a negative number of samples": (put_dataset("max_samples", -1), ["max_samples", "A1"]),
    "strict below one worst case": (
        both(put("run", "admission", "strict"), put_dataset("max_tokens", 599)),
        ["strict", "599", "600", "A1"],
    ),
    "no such admission": (put("run", "admission", "greedy"), ["admission", "[run]"]),
    "no such treatment of cut answers": (put("run", "truncated", "cut"), ["truncated", "[run]"]),
    "no hours": (put("run", "max_hours", 0), ["max_hours", "above 0"]),
    "no concurrency": (put("sglang", "concurrency", 0), ["concurrency", "above 0"]),
    "a server that is no URL": (put("sglang", "servers", ["gpu0:30000"]), ["'gpu0:30000'", "http://"]),
    "answers of no length": (put("sampling", "max_new_tokens", 0), ["max_new_tokens", "0"]),
    "leases that run out": (put("timing", "renew_ms", 2000), ["renew_ms", "lease_ms"]),
}


@pytest.fixture
def plain(local_job: Job) -> Job:
    local_job.dataset("A1", prompts("A1", 3))
    return local_job


@pytest.mark.parametrize("name", ROWS)
def test_a_mistake_in_the_run_file_is_one_sentence(plain: Job, name: str) -> None:
    edit, words = ROWS[name]
    edit(plain)
    one_sentence(plain.write().call("status"), str(plain.file), *words)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"time_scal": 2}, ["[simulator]", "time_scal", "did you mean time_scale?"]),
        ({"lengths": {"A1": {"shap": "constant"}}}, ["[simulator]", "shap"]),
        ({"time_scale": -1}, ["[simulator]", "time_scale"]),
    ],
)
def test_a_mistake_in_the_simulator_table_is_one_sentence(plain: Job, table: dict[str, Any], words: list[str]) -> None:
    plain.tables["simulator"] = table
    one_sentence(plain.write().call("run"), *words)
    assert not plain.output.exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[run\nname = 1", ["not TOML", "line 1"]),
        (b"\xff\xfe", ["cannot be read"]),
        (b'model.tokenizer = "x"\n[dataset]\nname = "A1"', ["[[dataset]]", "two brackets"]),
        (b'model.tokenizer = "x"\ndataset = [1]', ["[[dataset]]"]),
        (b"run = 3", ["[run] must be a table"]),
        (b"simulator = 3", ["[simulator] must be a table"]),
        (
            b'model.tokenizer = "x"\nsampling = 3\ndataset = [{ name = "A1", prompts = "x" }]',
            ["[sampling] must be a table"],
        ),
        (None, ["no run file"]),
    ],
)
def test_a_run_file_that_is_none_is_one_sentence(plain: Job, content: bytes | None, words: list[str]) -> None:
    if content is not None:
        plain.file.write_bytes(content)
    one_sentence(plain.call("run"), str(plain.file), *words)


def test_a_folder_is_no_run_file(plain: Job, tmp_path: Path) -> None:
    plain.file.mkdir()
    one_sentence(plain.call("run"), "cannot be read")


OVERRIDES = {
    "no value": ("run.max_hours", ["TABLE.KEY=VALUE"]),
    "no table": ("max_hours=2", ["TABLE.KEY=VALUE"]),
    "a mistyped key": ("run.max_hour=2", ["did you mean max_hours?"]),
    "an unknown dataset": ("dataset.B9.max_tokens=1", ["B9", "dataset.NAME.KEY=VALUE"]),
    "a dataset without a key": ("dataset.A1=1", ["dataset.NAME.KEY=VALUE"]),
    "below a value": ("run.name.first=1", ["run.name"]),
    "below a dataset's value": ("dataset.A1.prompts.first=1", ["prompts"]),
    "a wrong type": ("run.max_hours=soon", ["max_hours"]),
}


@pytest.mark.parametrize("name", OVERRIDES)
def test_a_mistake_in_set_is_one_sentence(plain: Job, name: str) -> None:
    override, words = OVERRIDES[name]
    one_sentence(plain.write().call("status", "--set", override), *words)


COMMANDS: dict[str, tuple[list[str], list[str]]] = {
    "push of an unknown dataset": (["push", "B9"], ["B9", "A1"]),
    "budget of an unknown dataset": (["budget", "set", "B9", "5"], ["B9", "A1"]),
    "a budget that is no number": (["budget", "set", "A1", "abc"], ["'abc'", "none"]),
    "a budget that is a fraction": (["budget", "set", "A1", "1.5"], ["'1.5'"]),
    "retry of an unknown dataset": (["retry", "B9"], ["B9", "A1"]),
    "retry where nothing was rejected": (["retry"], ["rejected"]),
    "work without servers": (["work"], ["no SGLang server", "tokenmill sim"]),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_mistake_on_the_command_line_is_one_sentence(plain: Job, name: str) -> None:
    (command, *arguments), words = COMMANDS[name]
    ended = plain.write().call(command, *arguments, TOKENMILL_REDIS_URL=NOWHERE)
    one_sentence(ended, *words)


@pytest.mark.parametrize("command", ["collect", "push", "work"])
def test_a_part_without_a_redis_says_how_to_name_one(plain: Job, command: str) -> None:
    one_sentence(plain.write().call(command), "TOKENMILL_REDIS_URL", "tokenmill run")


def test_a_redis_url_that_is_none_is_one_sentence_and_shows_no_password(plain: Job) -> None:
    ended = plain.write().call("collect", TOKENMILL_REDIS_URL="http://user:hunter2@host/0")
    one_sentence(ended, "not a Redis URL", "redis://HOST:PORT/0")
    assert "hunter2" not in ended.err


@pytest.mark.parametrize("command", ["run", "push"])
def test_missing_prompts_are_said_before_anything_starts(plain: Job, command: str) -> None:
    plain.datasets["A1"]["prompts"] = "nothing/*.jsonl"
    ended = plain.write().call(command, TOKENMILL_REDIS_URL=NOWHERE)
    one_sentence(ended, "A1", "nothing/*.jsonl")
    assert not plain.output.exists()


def test_an_unusable_tokenizer_is_one_sentence(plain: Job) -> None:
    plain.tables["model"]["tokenizer"] = "./no-such-folder"
    plain.tables["simulator"] = {}
    one_sentence(plain.write().call("run"), "no-such-folder")

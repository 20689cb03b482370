"""What is wrong in a run file or on the command line: exit code 2 and one sentence that names it and the mend."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e_support import Ended, Job, prompts
from tokenmill import runfile
from tokenmill.runfile import RunFileProblem

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
    "a cap that is a word": (
        put_dataset("max_tokens", "10M"),
        ["max_tokens in [[dataset]] A1", "'10M'", "a whole number", '"none"'],
    ),
    "a cap that is a fraction": (put_dataset("max_tokens", 1.5), ["A1", "max_tokens", "1.5", "a whole number"]),
    "no cap at all": (lambda job: job.tables["run"].pop("max_tokens_per_dataset"), ["A1 has no budget"]),
    "a total of a word": (put("run", "max_tokens_total", "much"), ["max_tokens_total", "'much'", "a whole number"]),
    "a seed in a list": (put("run", "seed", [1]), ["seed in [run]", "[1]", "true or false"]),
    "a negative total": (put("run", "max_tokens_total", -1), ["max_tokens_total", "-1"]),
    "a negative number of samples": (put_dataset("max_samples", -1), ["max_samples", "A1"]),
    "strict below one worst case": (
        both(put("run", "admission", "strict"), put_dataset("max_tokens", 599)),
        ["strict", "599", "600", "A1"],
    ),
    "no such admission": (put("run", "admission", "greedy"), ["admission in [run]", '"forecast", "strict" or "drain"']),
    "no such treatment of cut answers": (put("run", "truncated", "cut"), ["truncated", "[run]"]),
    "no hours": (put("run", "max_hours", 0), ["max_hours", "above 0"]),
    "no concurrency": (put("sglang", "concurrency", 0), ["concurrency", "above 0"]),
    "a server with a password in its URL": (
        put("sglang", "servers", ["http://user:hunter2@gpu0:30000"]),
        ["[sglang] servers", "a password in it", "TOKENMILL_SGLANG_API_KEY"],
    ),
    "a server with a password in its URL, without brackets": (
        put("sglang", "servers", "http://user:hunter2@gpu0:30000"),
        ["servers in [sglang]", "may hold a password", "a list of texts"],
    ),
    "a server that is no URL": (put("sglang", "servers", ["gpu0:30000"]), ["'gpu0:30000'", "http://"]),
    "answers of no length": (put("sampling", "max_new_tokens", 0), ["max_new_tokens", "0"]),
    "leases of a century": (put("timing", "lease_ms", 2**62), ["lease_ms", "at most"]),
    "leases beyond a day": (put("timing", "lease_ms", 86_400_001), ["lease_ms", "86,400,000"]),
    "hours that are no number": (put("run", "max_hours", float("nan")), ["run.max_hours", "nan", "finite"]),
    "hours without an end": (put("run", "max_hours", float("inf")), ["run.max_hours", "inf", "finite"]),
    "hours of a hundred years": (put("run", "max_hours", 1e6), ["max_hours", "87,600"]),
    "a temperature that is no number": (put("sampling", "temperature", float("nan")), ["temperature", "finite"]),
    "a temperature without an end, deep": (
        put_dataset("sampling", {"custom_params": {"list": [1.0, float("-inf")]}}),
        ["custom_params.list.2", "-inf"],
    ),
    "a temperature below 0": (put("sampling", "temperature", -1), ["[sampling]", "temperature", "non-negative"]),
    "a temperature in words": (put("sampling", "temperature", "hot"), ["temperature in [sampling]", "expected f64"]),
    "a share of more than all": (put_dataset("sampling", {"top_p": 1.5}), ["sampling of", "A1", "top_p", "(0, 1]"]),
    "a penalty out of range": (put("sampling", "presence_penalty", 3), ["presence_penalty", "[-2, 2]"]),
    "a least length above the longest": (put_dataset("sampling", {"min_new_tokens": 601}), ["min_new_tokens", "600"]),
    "a stop that is no text": (put("sampling", "stop", [1]), ["stop in [sampling]", "StringOrList"]),
    "two grammars": (put_dataset("sampling", {"regex": "a", "ebnf": "b"}), ["Only one of"]),
    "a broken grammar": (put("sampling", "regex", "("), ["[sampling]", "regex"]),
    "a bias for no token": (put_dataset("sampling", {"logit_bias": {"x": 1.0}}), ["sampling of", "'x'"]),
    "a cap beyond 64 bits": (put_dataset("max_tokens", 2**70), ["max_tokens", "2^53"]),
    "a cap beyond what Lua counts": (put_dataset("max_tokens", 2**53 + 1), ["max_tokens", "2^53"]),
    "a cap of thousands of digits": (put_dataset("max_tokens", 10**4000), ["max_tokens", "many digits"]),
    "a total beyond what Lua counts": (put("run", "max_tokens_total", 2**63), ["max_tokens_total", "2^53"]),
    "samples beyond what Lua counts": (put_dataset("max_samples", 2**63), ["max_samples", "2^53"]),
    "an answer of 2^40 tokens": (put("sampling", "max_new_tokens", 2**40), ["max_new_tokens", "2,147,483,647"]),
    "a billion requests in flight": (put("sglang", "concurrency", 10**9), ["concurrency", "16,384"]),
    "an empty name": (put("run", "name", ""), ["name in [run]", "empty"]),
    "a name of spaces": (put("run", "name", "  "), ["name in [run]", "empty"]),
    "a name of two lines": (put("run", "name", "a\nb"), ["name in [run]", "unprintable"]),
    "a name of a book": (put("run", "name", "a" * 1001), ["name in [run]", "1,001"]),
    "an empty output": (put("run", "output", ""), ["output in [run]", "empty"]),
    "an empty tokenizer": (put("model", "tokenizer", ""), ["tokenizer in [model]", "empty"]),
    "an empty dataset name": (put_dataset("name", ""), ["''", "letters, digits, _ and -"]),
    "a dataset name of a book": (put_dataset("name", "a" * 101), ["100", "101"]),
    "empty prompts": (put_dataset("prompts", ""), ["prompts of [[dataset]] A1", "empty"]),
    "NUL in a path": (put("run", "output", "out\0"), ["run.output", "NUL"]),
    "NUL in the prompts": (put_dataset("prompts", "a\0b"), ["dataset.1.prompts", "NUL"]),
    "NUL in a tokenizer": (put("model", "tokenizer", "a\0b"), ["model.tokenizer", "NUL"]),
    "NUL in a key": (put("model", "chat_template_kwargs", {"a\0b": 1}), ["chat_template_kwargs", "NUL"]),
    "output that is a device": (put("run", "output", "/dev/null"), ["/dev/null", "folder"]),
    "output below a file": (put("run", "output", "A1.jsonl/out"), ["A1.jsonl is a file", "folder"]),
    "output that is a file": (put("run", "output", "A1.jsonl"), ["A1.jsonl is a file", "folder"]),
    "output of an endless name": (put("run", "output", "a" * 300), ["output in [run]", "another path"]),
    **{
        f"a server at {url!r}": (put("sglang", "servers", [url]), [repr(url), "[sglang] servers", why])
        for url, why in {
            "gpu0:30000": "http://",
            "ftp://gpu0": "http://",
            "http://": "no host",
            "http://:30000": "no host",
            "http://gpu0:70000": "65535",
            "http://gpu0:0": "65535",
            "http://gpu0:x": "65535",
            "http://gpu 0:30000": "spaces",
            "http://a..b": "called",
            "http://[::1": "cannot be read",
            "http://gpu0/?a=1": "without ?",
        }.items()
    },
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
    with pytest.raises(RunFileProblem) as problem:
        runfile.load(plain.write().file)
    assert problem.value.exit_code == 2
    assert "\n" not in str(problem.value)
    for word in (str(plain.file), *words):
        assert word in str(problem.value)
    assert "hunter2" not in str(problem.value)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"time_scal": 2}, ["[simulator]", "time_scal", "did you mean time_scale?"]),
        ({"lengths": {"A1": {"shap": "constant"}}}, ["[simulator]", "shap"]),
        ({"time_scale": -1}, ["[simulator]", "time_scale"]),
        ({"time_scale": 0}, ["[simulator]", "time_scale"]),
        ({"time_scale": float("nan")}, ["simulator.time_scale", "finite"]),
        ({"time_scale": float("inf")}, ["simulator.time_scale", "finite"]),
        ({"time_scale": 1e300}, ["[simulator]", "time_scale"]),
        ({"port": 70000}, ["[simulator]", "port", "65535"]),
        ({"port": -1}, ["[simulator]", "port"]),
        ({"slots": 2**40}, ["[simulator]", "max_running_requests"]),
        ({"health_s": -1}, ["[simulator]", "health_s"]),
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
    "no number": ("run.max_hours=nan", ["run.max_hours", "finite"]),
    "no end": ("sampling.temperature=inf", ["sampling.temperature", "finite"]),
    "too large": ("dataset.A1.max_tokens=99999999999999999999", ["max_tokens", "2^53"]),
    "far too large": ("dataset.A1.max_tokens=" + "9" * 5000, ["max_tokens"]),
    "servers that are no list": ("sglang.servers=http://gpu0:30000", ["servers in [sglang]", "a list of texts"]),
    "an empty value": ("run.name=", ["name in [run]", "empty"]),
    "a device": ("run.output=/dev/null", ["/dev/null"]),
    "bytes that are no text": ("run.name=\udcff", ["run.name", "UTF-8"]),
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
    "a budget below 0": (["budget", "set", "A1", "-1"], ["'-1'", "0 or more"]),
    "a budget beyond what Lua counts": (["budget", "set", "A1", "9007199254740993"], ["2^53"]),
    "a budget of thousands of digits": (["budget", "set", "A1", "9" * 5000], ["2^53"]),
    "a budget in other digits": (["budget", "set", "A1", "²"], ["'²'"]),
    "a budget without a dataset": (["budget", "set"], ["Missing argument", "tokenmill budget"]),
    "an unknown option": (["status", "--wach"], ["--wach", "tokenmill status --help"]),
    "an option's wrong value": (["run", "-n", "0"], ["-n", "--help"]),
    "workers beyond any machine": (["run", "-n", "100000"], ["-n"]),
    "a wait that is no number": (["collect", "--wait", "nan"], ["--wait", "nan"]),
    "a wait without an end": (["collect", "--wait", "inf"], ["--wait", "inf"]),
    "a server that is no URL": (["work", "--server", "gpu0:30000"], ["'gpu0:30000'", "--server", "http://"]),
    "a server's port beyond all": (["work", "--server", "http://gpu0:70000"], ["--server", "65535"]),
    "too many requests in flight": (["work", "--concurrency", "1000000000"], ["--concurrency"]),
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


@pytest.mark.parametrize(
    "url",
    ["redis://h:70000/0", "redis://h:x/0", "redis://h/abc", "redis://h/-1", "redis://a..b/0"],
)
def test_a_redis_url_that_cannot_be_used_is_one_sentence(plain: Job, url: str) -> None:
    one_sentence(plain.write().call("collect", "--wait", "0", TOKENMILL_REDIS_URL=url), "not a Redis URL", url)


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("TOKENMILL_CONCURRENCY", "many", ["TOKENMILL_CONCURRENCY", "'many'", "16,384"]),
        ("TOKENMILL_CONCURRENCY", "0", ["TOKENMILL_CONCURRENCY", "'0'"]),
        ("TOKENMILL_CONCURRENCY", "1000000000", ["TOKENMILL_CONCURRENCY"]),
        ("TOKENMILL_CONCURRENCY", "²", ["TOKENMILL_CONCURRENCY"]),
        ("TOKENMILL_SERVERS", "http://gpu0:1,gpu1", ["TOKENMILL_SERVERS", "'gpu1'"]),
        ("TOKENMILL_SERVERS", "http://gpu0:70000", ["TOKENMILL_SERVERS", "65535"]),
        ("TOKENMILL_SGLANG_API_KEY", "key\n", ["TOKENMILL_SGLANG_API_KEY"]),
        ("TOKENMILL_SGLANG_API_KEY", "schlüssel", ["TOKENMILL_SGLANG_API_KEY"]),
    ],
)
def test_what_a_worker_of_rq_is_told_wrongly_ends_it_with_a_sentence(
    job: Job, variable: str, value: str, words: list[str]
) -> None:
    job.dataset("A1", prompts("A1", 3))
    collect, push = job.write().start("collect"), job.start("push")
    url = job.environment["TOKENMILL_REDIS_URL"]
    command = [sys.executable, "-m", "rq.cli", "worker", "-w", "workers.AsyncWorker", "-S", "json", "--url", url, "A1"]
    worker = job.start_command(command, **{variable: value})
    worker.ended()
    assert "Traceback" not in worker.text
    assert all(word in worker.text for word in words), worker.text
    assert collect.is_running and push.is_running


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
    assert not plain.output.exists()

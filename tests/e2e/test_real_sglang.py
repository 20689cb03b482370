"""Whole runs against a real SGLang that serves a tiny model with random weights on the CPU.

Skipped without an installed one (TOKENMILL_TEST_SGLANG_DIR), its start script and the prompt sets.
One server serves all tests of this file, so the file must stay with one test process.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from budget.errors import Exit
from workers import outcomes
from workers.chat import ChatTokenizer
from workers.contracts import Record
from workers.pieces import Pieces, lay_down
from workers.servers import Servers
from workers.sglang import Client
from workers.simulator.config import SimulatorConfig
from workers.simulator.lengths import LengthSpec
from workers.simulator.process import SimulatorProcess

ROOT = Path(__file__).resolve().parents[2]
START = ROOT.parent / "shared" / "tools" / "real-sglang" / "serve.sh"
DATA = ROOT.parent / "shared" / "data"
INSTALLED = Path(os.environ.get("TOKENMILL_TEST_SGLANG_DIR", "/nowhere"))
MODEL = INSTALLED / "models" / "tiny-qwen3"
OTHER_MODEL = INSTALLED / "models" / "smollm2-135m"
CONTEXT = 2048
VOCABULARY = 2048
# A step of the model takes so long where the middle of an answer is what is tested: SGLang's own brake.
STEP_S = 0.08
END_TOKEN, FULL_STOP = 2, 16

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.xdist_group("sglang"),
    pytest.mark.timeout(1500),
    pytest.mark.skipif(
        not (START.exists() and DATA.exists() and MODEL.exists()),
        reason="needs a real SGLang in TOKENMILL_TEST_SGLANG_DIR, with its start script and the prompt sets",
    ),
]


def until(what: str, condition: Callable[[], Any], seconds: float = 480) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s for {what}"
        time.sleep(0.05)


class RealServer:
    """A real server on a port of its own, ended and started again as a whole: it is three processes."""

    def __init__(self, log: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                ["bash", str(START), str(INSTALLED), str(self.port)],
                env={**os.environ, "MODEL": MODEL.name},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"the server ended: {self._log.read_text(errors='replace')[-2000:]}"
        try:
            with urllib.request.urlopen(f"{self.url}/ready", timeout=5) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def running(self) -> int:
        """Requests that it is generating for."""
        with urllib.request.urlopen(f"{self.url}/v1/loads?include=core", timeout=30) as answer:
            return sum(rank["num_running_reqs"] for rank in json.load(answer)["loads"])

    def brake(self, step_s: float | None) -> None:
        """From now on each step of the model takes so many seconds longer; None: none."""
        body = json.dumps({"forward_sleep_time": step_s}).encode()
        asked = urllib.request.Request(f"{self.url}/slow_down", body, {"content-type": "application/json"})
        urllib.request.urlopen(asked, timeout=30).close()

    def kill(self) -> None:
        """kill -9, all of it: as when its machine dies."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    started = RealServer(tmp_path_factory.mktemp("sglang") / "log")
    started.start()
    try:
        until("the server to be ready", started.is_ready)
        yield started
    finally:
        started.kill()


def run_file(folder: Path, server: RealServer, *datasets: str, tokenizer: Path = MODEL, more: str = "") -> Path:
    """A run of short answers; `datasets` are [[dataset]] tables without their first line."""
    folder.mkdir(exist_ok=True)
    tables = "\n".join(f"[[dataset]]\n{table}" for table in datasets)
    file = folder / "run.toml"
    file.write_text(
        f"""
[run]
name = "real"
output = "out"
{more}
[model]
tokenizer = "{tokenizer}"
[sglang]
servers = ["{server.url}"]
concurrency = 4
[sampling]
temperature = 0.7
top_p = 0.95
max_new_tokens = 48
[timing]
lease_ms = 6000
renew_ms = 1000
sweep_ms = 1000
retry_ms = 200
{tables}
"""
    )
    return file


def tokenmill(*arguments: "str | Path") -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "tokenmill", *map(str, arguments)],
        env={name: value for name, value in os.environ.items() if not name.startswith("TOKENMILL_")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def ended(process: "subprocess.Popen[str]", seconds: float = 600) -> tuple[int, str, str]:
    """Its exit code, what it printed, and what it complained of."""
    try:
        printed, complaints = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        printed, complaints = process.communicate()
        raise AssertionError(f"it did not end: {printed[-2000:]}\n{complaints[-2000:]}") from None
    return process.returncode, printed, complaints


def lines(folder: Path, dataset: str, name: str = "raw_responses.jsonl") -> list[dict[str, Any]]:
    file = folder / "out" / dataset / name
    return [json.loads(line) for line in file.read_bytes().splitlines()] if file.exists() else []


def verified(file: Path) -> None:
    code, printed, complaints = ended(tokenmill("verify", file))
    assert (code, complaints) == (Exit.DONE, ""), printed
    assert "everything agrees" in printed


def check_record(record: dict[str, Any], chat: ChatTokenizer) -> None:
    assert record["model"] == MODEL.name
    assert len(record["output_ids"]) == record["completion_tokens"] >= 1
    assert len(record["input_ids"]) == record["prompt_tokens"]
    assert record["sampling"]["temperature"] == 0.7
    if record["messages"]:
        assert record["input_ids"] == chat.render(record["messages"])
        assert record["input_ids"].count(1) == len(record["messages"]) + 1, "each turn begins once, the answer's too"
    text = chat.decode(record["output_ids"], skip_special_tokens=True)
    if record["finish_reason"] == "length":
        assert record["matched"] == ""
        # The server keeps two positions more at the end of its context, without saying so.
        reserve = 2 if record["prompt_tokens"] + record["sampling"]["max_new_tokens"] == CONTEXT else 0
        assert record["completion_tokens"] == record["sampling"]["max_new_tokens"] - reserve
        assert record["text"] == text
    elif record["matched"] == str(END_TOKEN):
        assert record["output_ids"][-1] == END_TOKEN, "the end token is trained on, so it must be there"
        assert record["text"] == text
    else:
        assert record["finish_reason"] == "stop"
        assert record["matched"] == "."
        assert text.startswith(record["text"] + ".")


def test_three_public_sets_and_prompts_that_are_hard_on_a_server(server: RealServer, tmp_path: Path) -> None:
    hard = [
        {"id": "hello", "prompt": "Hello!"},
        {"id": "outside", "input_ids": [1, 2, VOCABULARY]},
        {"id": "beyond the server", "prompt": "word " * (CONTEXT + 100)},
        {"id": "just fits", "input_ids": [1, *[100] * (CONTEXT - 10)]},
    ]
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json"):
        (tokenizer / name).symlink_to(MODEL / name)
    (tokenizer / "generation_config.json").write_text('{"top_k": 30, "temperature": 0.2}')
    (tmp_path / "hard.jsonl").write_text("".join(json.dumps(row) + "\n" for row in hard))
    file = run_file(
        tmp_path,
        server,
        f'name = "human_eval"\nprompts = "{DATA}/human_eval/HumanEval.jsonl.gz"\nmax_tokens = 120',
        f'name = "gsm8k"\nprompts = "{DATA}/gsm8k/test.jsonl"\nmax_tokens = 120',
        # With a full stop as the end, and a model that likes it, most first turns end, and the second one is asked.
        f'name = "mt_bench"\nprompts = "{DATA}/mt_bench/question.jsonl"\nmax_tokens = 300\n'
        f'sampling = {{ stop = ["."], logit_bias = {{ "{FULL_STOP}" = 8.0 }} }}',
        'name = "hard"\nprompts = "hard.jsonl"\nmax_tokens = "none"',
        tokenizer=tokenizer,
    )
    code, printed, complaints = ended(tokenmill("run", file, "--json"))
    assert code == Exit.DONE, complaints
    status = json.loads(printed.splitlines()[-1])
    assert (status["state"], status["sglang"]) == ("complete", "real")
    verified(file)

    chat = ChatTokenizer.load(str(MODEL))
    assert chat.backend is not None
    packed = lay_down(chat.backend)
    assert packed is not None
    pieces = Pieces(packed)
    records = {name: lines(tmp_path, name) for name in ("human_eval", "gsm8k", "mt_bench", "hard")}
    for dataset in records.values():
        for record in dataset:
            check_record(record, chat)
            told = pieces.tells(msgspec.convert(record, Record))
            assert told == (record["matched"] != "."), "what its ids tell of a text is what the server says"
            sampling = {**record["sampling"], "max_new_tokens": 48, "stop": None}
            sampling.pop("logit_bias", None)
            asked = {"temperature": 0.7, "top_p": 0.95, "top_k": 30, "max_new_tokens": 48, "stop": None}
            assert sampling == asked, "the model's own defaults, and the run file's on top"
    for name, cap in (("human_eval", 120), ("gsm8k", 120), ("mt_bench", 300)):
        spent = sum(record["completion_tokens"] for record in records[name])
        assert cap <= spent < cap + 5 * 2 * 48, "what the slots held at the end is the most that may be over"

    later = [record for record in records["mt_bench"] if record["turn"] == 2]
    assert later
    for record in later:
        (first,) = (other for other in records["mt_bench"] if other["id"] == record["id"] and other["turn"] == 1)
        answer = {"role": "assistant", "content": first["text"]}
        assert record["messages"][:-1] == [*first["messages"], answer]
        assert record["input_ids"][: first["prompt_tokens"]] == first["input_ids"]

    fits = next(record for record in records["hard"] if record["id"] == "just fits")
    assert fits["sampling"]["max_new_tokens"] == 9
    assert {line["id"]: line["reason"] for line in lines(tmp_path, "hard", "rejected.jsonl")} == {
        "outside": "bad_ids",
        "beyond the server": "too_long",
    }
    assert server.is_ready(), "nothing that kills a server was sent"


def answer_of(outcome: outcomes.Outcome) -> tuple[Any, ...]:
    """What an outcome does to a job, without what the model chose to say."""
    if not isinstance(outcome, outcomes.Accept):
        return type(outcome).__name__, outcome.reason
    reason = outcome.answer.meta_info.finish_reason
    assert reason is not None
    ids = outcome.answer.output_ids
    return reason.type, type(reason.matched).__name__, ids is None, outcome.answer.meta_info.weight_version


def requests() -> dict[str, dict[str, Any]]:
    """Requests that the client sends, and those that it sends only where something is wrong."""
    ids = [1, 409, 201, 1955, 2, 201, 1, 520, 953, 201]
    # So that the model ends at once: how long its answer is is not what is compared.
    ends = {"max_new_tokens": 400, "logit_bias": {str(END_TOKEN): 100.0}}
    return {
        "an answer": {"input_ids": ids, "sampling_params": ends},
        "cut": {"input_ids": ids, "sampling_params": {"max_new_tokens": 3, "ignore_eos": True}},
        "no special token skipped": {"input_ids": ids, "sampling_params": {**ends, "skip_special_tokens": False}},
        "the longest prompt": {"input_ids": [5] * (CONTEXT - 7), "sampling_params": {"max_new_tokens": 1}},
        "a longer one": {"input_ids": [5] * (CONTEXT - 6), "sampling_params": {"max_new_tokens": 1}},
        "longer than the context": {"input_ids": [5] * (CONTEXT + 1), "sampling_params": {"max_new_tokens": 1}},
        "more asked for than fits": {"input_ids": ids, "sampling_params": {"max_new_tokens": CONTEXT}},
        "an unknown parameter": {"input_ids": ids, "sampling_params": {"max_tokens": 4}},
        "a wrong parameter": {"input_ids": ids, "sampling_params": {"temperature": -1.0}},
        "a parameter of another type": {"input_ids": ids, "sampling_params": {"top_p": "high"}},
        "no ids": {"input_ids": [], "sampling_params": {"max_new_tokens": 1}},
    }  # fmt: skip


def test_the_simulated_server_answers_the_client_alike(server: RealServer) -> None:
    """All that the client reads: outcomes, the model's description, the load, the tokenizer's ids."""
    settings = SimulatorConfig(
        tokenizer=str(MODEL), model=MODEL.name, context_length=CONTEXT, lengths={"*": LengthSpec(mean=5)}
    )
    simulated = SimulatorProcess.start(settings)
    server.brake(0.005)  # so that a long answer is under way when it is looked at
    text = ChatTokenizer.load(str(MODEL)).probe_text

    async def seen(url: str) -> dict[str, Any]:
        client = Client(None, 180.0)
        servers = Servers(client, [url], 1.0, lambda: None)
        try:
            found: dict[str, Any] = {}
            for name, body in requests().items():
                found[name] = answer_of(outcomes.sort_answer(*await client.generate(url, msgspec.json.encode(body))))
            slow = {
                "rid": "r" * 32,
                "input_ids": [1, 5],
                "sampling_params": {"max_new_tokens": 1900, "ignore_eos": True},
            }
            running = asyncio.create_task(client.generate(url, msgspec.json.encode(slow)))
            async with asyncio.timeout(60):
                # A real server counts its requests now and then.
                while (loads := await servers.measure(servers.all[0])) is None or loads.running == 0:
                    pass
            found["in flight twice"] = answer_of(
                outcomes.sort_answer(*await client.generate(url, msgspec.json.encode(slow)))
            )
            found["load"] = (loads.running, loads.waiting, loads.throughput >= 0)
            await client.abort(url, "r" * 32)
            found["aborted"] = answer_of(outcomes.sort_answer(*await running))
            status, model = await client.model(url)
            found["model"] = status, model and (model.name, model.weight_version, model.context_length)
            found["ids"] = await client.tokenize(url, text)
            return found
        finally:
            await client.close()

    try:
        real, simulation = asyncio.run(seen(server.url)), asyncio.run(seen(simulated.url))
    finally:
        simulated.stop(grace_s=0)
        server.brake(None)
    assert simulation == real
    assert real["aborted"] == ("Retry", "aborted")


def test_another_models_tokenizer_is_refused(server: RealServer, tmp_path: Path) -> None:
    table = f'name = "gsm8k"\nprompts = "{DATA}/gsm8k/test.jsonl"\nmax_tokens = 100'
    file = run_file(tmp_path, server, table, tokenizer=OTHER_MODEL)
    code, _, complaints = ended(tokenmill("run", file))
    assert code == Exit.USER
    sentence = complaints.strip().splitlines()[-1]
    assert f"{server.url} serves {MODEL.name}, which tokenizes otherwise than the run's tokenizer" in sentence
    assert lines(tmp_path, "gsm8k") == []


def test_a_stopped_run_and_a_killed_server_lose_nothing(server: RealServer, tmp_path: Path) -> None:
    """SIGTERM drains; then the server is killed in mid-run, comes back, and no prompt is charged for it."""
    file = run_file(tmp_path, server, f'name = "gsm8k"\nprompts = "{DATA}/gsm8k/test.jsonl"\nmax_tokens = 600')
    server.brake(STEP_S)
    stopped = tokenmill("run", file)
    until("a first answer", lambda: lines(tmp_path, "gsm8k"))
    stopped.send_signal(signal.SIGTERM)
    assert ended(stopped)[0] == Exit.INTERRUPTED
    before = lines(tmp_path, "gsm8k")
    assert sum(record["completion_tokens"] for record in before) < 600
    verified(file)

    run = tokenmill("run", file)
    until("requests to be in flight", server.running)
    server.kill()
    log = tmp_path / "out" / ".tokenmill" / "logs" / "worker-1.log"
    until("the worker to notice", lambda: "is at fault" in log.read_text())
    at_the_kill = len(lines(tmp_path, "gsm8k"))
    server.start()
    until("the server to be ready", server.is_ready)
    code, _, complaints = ended(run)
    assert code == Exit.DONE, complaints
    verified(file)
    records = lines(tmp_path, "gsm8k")
    assert len(records) > at_the_kill
    assert records[: len(before)] == before
    assert lines(tmp_path, "gsm8k", "rejected.jsonl") == []
    assert log.read_text().count(f"server {server.url} answers again") == 1

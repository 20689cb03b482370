"""The simulator as a process: its one line, its signals, its exit codes, its log."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from budget.errors import OutsideFault
from tests.support import listening_at
from workers.simulator.config import SimulatorConfig
from workers.simulator.lengths import LengthSpec
from workers.simulator.process import SimulatorProcess

Start = Callable[[SimulatorConfig], SimulatorProcess]
FAST = {"*": LengthSpec(shape="constant", mean=20)}


def _call(url: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json", **(headers or {})})
    with urllib.request.urlopen(request, timeout=60) as response:
        raw = response.read()
    return json.loads(raw) if raw else None


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)


def _in_background(url: str, body: Any) -> tuple[threading.Thread, list[Any]]:
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(_call(url, "/generate", body))
        except OSError as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    _until(lambda: _call(url, "/simulator/state")["running"] == 1)
    return thread, outcome


def _health(url: str) -> int:
    try:
        _call(url, "/health")
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    return 200


def test_it_listens_on_loopback_alone(start_process: Start) -> None:
    server = start_process(SimulatorConfig())
    assert listening_at(int(server.url.rpartition(":")[2])) == ["0100007F"]


def test_sigterm_drains_and_ends_well(start_process: Start) -> None:
    server = start_process(SimulatorConfig(lengths={"*": LengthSpec(shape="constant", mean=100)}))
    _call(server.url, "/slow_down", {"forward_sleep_time": 10})
    thread, outcome = _in_background(server.url, {"input_ids": [1]})
    server.process.send_signal(signal.SIGTERM)
    _until(lambda: _health(server.url) == 503)
    _call(server.url, "/slow_down", {"forward_sleep_time": 0})
    thread.join()
    assert outcome[0]["meta_info"]["completion_tokens"] == 100
    assert server.process.wait(30) == 0


def test_a_second_signal_does_not_wait(start_process: Start) -> None:
    server = start_process(SimulatorConfig(lengths={"*": LengthSpec(shape="constant", mean=100)}, time_scale=0.001))
    thread, outcome = _in_background(server.url, {"input_ids": [1]})
    server.process.send_signal(signal.SIGINT)
    # It takes nothing new, so its closed door says that the first signal has arrived.
    _until(lambda: not _listens(server.url))
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(30) == 0
    thread.join()
    assert isinstance(outcome[0], OSError)


def _listens(url: str) -> bool:
    try:
        _call(url, "/ready")
    except OSError:
        return False
    return True


def test_a_token_outside_the_vocabulary_kills_the_process(start_process: Start) -> None:
    server = start_process(SimulatorConfig(vocab_size=100, crash_s=0.1))
    with pytest.raises(OSError, match=r"."):
        _call(server.url, "/generate", {"input_ids": [100]})
    assert server.process.wait(30) != 0


def test_it_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    program = (
        "import os, sys, time\n"
        "from workers.simulator.config import SimulatorConfig\n"
        "from workers.simulator.process import SimulatorProcess\n"
        "child = SimulatorProcess.start(SimulatorConfig())\n"
        "print(child.process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
    finally:
        parent.kill()
        parent.communicate()
    _until(lambda: not _is_alive(child))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # Nobody may be there to reap it.
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_what_is_not_http_is_refused_without_a_word(capfd: pytest.CaptureFixture[str]) -> None:
    server = SimulatorProcess.start(SimulatorConfig(lengths=FAST, time_scale=100.0))
    try:
        with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=60) as connection:
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            assert connection.recv(1000).startswith(b"HTTP/1.0 400")
        assert _call(server.url, "/generate", {"input_ids": [5]})["output_ids"]
    finally:
        server.stop()
    assert capfd.readouterr().err == ""


def test_two_servers_and_any_order_give_the_same_answers(start_process: Start) -> None:
    config = SimulatorConfig(time_scale=1000.0, lengths={"a": LengthSpec(mean=300), "*": LengthSpec(mean=20)})
    urls = [start_process(config).url for _ in range(2)]
    prompts = [{"input_ids": [n, n + 1], "sampling_params": {"max_new_tokens": 1000}} for n in range(20)]
    header = {"X-Tokenmill-Dataset": "a"}
    first = [_call(urls[0], "/generate", prompt, header) for prompt in prompts]
    second = [_call(urls[1], "/generate", prompt, header) for prompt in reversed(prompts)][::-1]
    assert [a["output_ids"] for a in first] == [b["output_ids"] for b in second]
    assert sum(len(a["output_ids"]) for a in first) > 20 * 100


def test_the_log_accounts_for_every_token(start_process: Start, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    config = SimulatorConfig(lengths=FAST, time_scale=100.0, log_path=str(path))
    server = start_process(config)
    for n in range(5):
        _call(server.url, "/generate", {"input_ids": [n], "rid": f"r{n}"}, {"X-Tokenmill-Dataset": "d"})
    state = _call(server.url, "/simulator/state")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["event"] for line in lines] == ["received", "finished"] * 5
    assert sum(line.get("tokens", 0) for line in lines) == state["generated_tokens"] == 100
    assert state["datasets"]["d"]["finished"] == 5
    assert {line["rid"] for line in lines} == {f"r{n}" for n in range(5)}


def test_it_answers_in_the_words_of_a_tokenizer(start_process: Start, tmp_path: Path) -> None:
    words = {f"w{n}": n for n in range(300)} | {"<end>": 300}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()  # pyright: ignore[reportAttributeAccessIssue] - a property in the stubs
    tokenizer.add_special_tokens(["<end>"])  # pyright: ignore[reportUnknownMemberType] - its stubs are partial
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    server = start_process(SimulatorConfig(tokenizer=str(tmp_path), lengths=FAST, time_scale=100.0))
    answer = _call(server.url, "/generate", {"text": "w1 w2 w3"})
    ids = answer["output_ids"]
    assert (ids[-1], answer["meta_info"]["prompt_tokens"]) == (300, 3)
    assert answer["text"] == " ".join(f"w{n}" for n in ids[:-1])
    tokens = _call(server.url, "/v1/tokenize", {"prompt": "w7 w9"})
    assert tokens == {"tokens": [7, 9], "count": 2, "max_model_len": 32768}


def test_it_reads_a_tokenizer_of_other_files(start_process: Start, tmp_path: Path) -> None:
    # No tokenizer.json: transformers makes one of these. An id beyond the default vocabulary ends a real server.
    words = {f"w{n}": n for n in range(40_000)} | {"<|endoftext|>": 40_000}
    (tmp_path / "vocab.json").write_text(json.dumps(words))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    settings = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    server = start_process(SimulatorConfig(tokenizer=str(tmp_path), lengths=FAST, time_scale=100.0))
    ids = _call(server.url, "/generate", {"input_ids": [39_999]})["output_ids"]
    assert ids[-1] == 40_000 and max(ids[:-1]) > 32_000


def test_special_tokens_are_added_unless_they_are_not_wanted(start_process: Start, tmp_path: Path) -> None:
    tokenizer = Tokenizer(WordLevel({"<begin>": 0, "w1": 1, "<end>": 2}, unk_token="w1"))
    tokenizer.pre_tokenizer = Whitespace()  # pyright: ignore[reportAttributeAccessIssue] - a property in the stubs
    tokenizer.add_special_tokens(["<begin>", "<end>"])  # pyright: ignore[reportUnknownMemberType] - its stubs are partial
    tokenizer.post_processor = TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue] - a property in the stubs
        single="<begin> $A", special_tokens=[("<begin>", 0)]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    server = start_process(SimulatorConfig(tokenizer=str(tmp_path)))
    for wanted, ids in ((None, [0, 1, 2]), (True, [0, 1, 2]), (False, [1, 2])):
        body = {"prompt": "w1 <end>"} | ({} if wanted is None else {"add_special_tokens": wanted})
        assert _call(server.url, "/v1/tokenize", body)["tokens"] == ids


@pytest.mark.parametrize(
    "arguments",
    [["--length", "x"], ["--config", '{"slots": 3}'], ["--fault", "{}"], ["--time-scale", "0"]],
)
def test_a_wrong_option_is_said_in_one_sentence(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "workers.simulator", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "Error: " in done.stderr
    assert "Traceback" not in done.stderr


def test_a_tokenizer_that_is_not_there_is_said_in_one_sentence() -> None:
    command = [sys.executable, "-m", "workers.simulator", "--tokenizer", "./nowhere"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == "Error: there is no tokenizer folder ./nowhere; correct `tokenizer` in the run file\n"


def test_a_server_that_cannot_start_is_reported(start_process: Start) -> None:
    taken = start_process(SimulatorConfig())
    port = int(taken.url.rpartition(":")[2])
    with pytest.raises(OutsideFault, match="did not start"):
        SimulatorProcess.start(SimulatorConfig(port=port))

"""What is wrong around a run at its start: prompts, Redis, servers, disks, other runs. One sentence, one exit code."""

import gzip
import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from tests.e2e_support import HELD_TOKENS, TOKENIZER, Ended, Job, RedisServer, Simulator, prompts, wait_for

StartSimulator = Callable[..., Simulator]

NOWHERE = "redis://user:hunter2@127.0.0.1:1/0"
NO_SERVER = "http://127.0.0.1:1"


def one_sentence(ended: Ended, code: int, *words: str) -> None:
    assert ended.code == code, ended.out + ended.err
    assert len(ended.said) == 1, ended.err
    assert ended.err.splitlines()[-1] == ended.said[0], "the sentence is the last that is said"
    assert "a fault in Tokenmill itself" not in ended.err
    for word in words:
        assert word in ended.said[0]


# -- prompts


def test_rows_that_cannot_be_prompts_are_rejected_and_the_run_ends_well(
    job: Job, start_simulator: StartSimulator
) -> None:
    simulator = start_simulator(context_length=2000)
    good = [json.dumps(row) for row in prompts("A1", 5)]
    bad = {
        "torn": '{"id": "torn", "prompt": "What i',
        "without": '{"id": "without", "answer": "42"}',
        "empty": '{"id": "empty", "input_ids": []}',
        "outside": '{"id": "outside", "input_ids": [5, 2000]}',
        "negative": '{"id": "negative", "input_ids": [5, -1]}',
        "long": json.dumps({"id": "long", "input_ids": [5] * 2000}),
    }
    job.dataset("A1", "\n".join([*good, *bad.values(), ""]).encode(), max_tokens="none")
    job.tables["sglang"]["servers"] = [simulator.url]
    ended = job.write().call("run", "--json")
    assert ended.code == 0, ended.err
    job.check()
    assert len(job.lines("A1")) == 5
    reasons = {line["id"]: line["reason"] for line in job.rejected("A1")}
    assert len(reasons) == 6
    assert reasons.items() >= {
        ("without", "no_prompt"), ("empty", "empty_prompt"), ("outside", "bad_ids"), ("negative", "bad_ids"),
        ("long", "too_long"),
    }  # fmt: skip
    assert "malformed" in reasons.values()
    dataset = json.loads(ended.out)["datasets"][0]
    assert (dataset["inputs"], dataset["committed"], dataset["rejected"]) == (11, 5, 6)
    # Once mended, they come back.
    mended = [*prompts("A1", 5), {"id": "empty", "input_ids": [5, 6]}]
    job.dataset("A1", mended, max_tokens="none")
    back = job.call("retry", "--reason", "empty_prompt")
    assert (back.code, "1 of 1 rejected prompts are back" in back.out) == (0, True), back.err
    assert job.call("run").code == 0
    job.check()
    assert "empty" in {line["id"] for line in job.lines("A1")}


def test_an_unreadable_prompt_file_is_named(local_job: Job) -> None:
    local_job.dataset("A1", b"")
    (local_job.folder / "A1.jsonl.gz").write_bytes(gzip.compress(b'{"prompt": "x"}\n' * 1000)[:40])
    local_job.datasets["A1"]["prompts"] = "A1.jsonl.gz"
    local_job.tables["simulator"] = {}
    one_sentence(local_job.write().call("run"), 2, "A1.jsonl.gz")


def test_a_folder_is_no_prompt_file(local_job: Job) -> None:
    local_job.dataset("A1", b"", prompts=".")
    local_job.datasets["A1"]["prompts"] = "."
    one_sentence(local_job.write().call("run"), 2, "A1", "is a folder")


# -- Redis


@pytest.fixture
def plain(local_job: Job) -> Job:
    local_job.dataset("A1", prompts("A1", 3))
    local_job.tables["sglang"]["servers"] = [NO_SERVER]
    return local_job.write()


@pytest.mark.parametrize("command", ["run", "collect", "push", "work"])
def test_a_redis_that_is_not_there_is_waited_for_and_named(plain: Job, command: str) -> None:
    ended = plain.call(command, "--wait", "1", TOKENMILL_REDIS_URL=NOWHERE)
    one_sentence(ended, 5, "Redis", "TOKENMILL_REDIS_URL")
    assert "hunter2" not in ended.err + ended.out


@pytest.mark.parametrize("command", ["status", "verify", "budget"])
def test_what_only_looks_answers_from_the_files_and_says_so(plain: Job, command: str) -> None:
    ended = plain.call(command, TOKENMILL_REDIS_URL=NOWHERE)
    assert ended.code == 0, ended.out + ended.err
    assert "A1" in ended.out
    assert ended.err.count("Redis does not answer") == 1
    assert "this is what the files say" in ended.err
    assert "Traceback" not in ended.err
    assert "hunter2" not in ended.err + ended.out


@pytest.mark.parametrize("command", ["run", "collect", "push"])
def test_a_redis_that_throws_jobs_away_is_refused(plain: Job, command: str) -> None:
    server = RedisServer().start("--maxmemory-policy", "allkeys-lru")
    try:
        ended = plain.call(command, TOKENMILL_REDIS_URL=server.url)
        one_sentence(ended, 4, "allkeys-lru", "CONFIG SET maxmemory-policy noeviction")
    finally:
        server.remove()


@pytest.fixture
def old_redis() -> Generator[str]:
    """The URL of something that answers like a Redis 6.2, as far as it is asked."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer(connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines:
            while head := lines.readline():
                words: list[bytes] = []
                for _ in range(int(head[1:])):
                    size = int(lines.readline()[1:])
                    words.append(lines.read(size + 2)[:-2].upper())
                if words[0] == b"INFO":
                    text = b"redis_version:6.2.14\r\nrun_id:abc\r\nmaxmemory_policy:noeviction\r\n"
                    connection.sendall(b"$%d\r\n%s\r\n" % (len(text), text))
                elif words[0] == b"HELLO":
                    connection.sendall(b"-ERR unknown command\r\n")
                else:
                    connection.sendall(b"+OK\r\n" if words[0] != b"PING" else b"+PONG\r\n")

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0?protocol=2"
    finally:
        listener.close()


def test_a_redis_that_is_too_old_is_refused(plain: Job, old_redis: str) -> None:
    one_sentence(plain.call("collect", TOKENMILL_REDIS_URL=old_redis), 4, "6.2.14", "too old", "7.0")


def test_a_database_of_another_run_is_refused(job: Job, tmp_path: Path) -> None:
    job.dataset("A1", prompts("A1", 3))
    job.tables["run"]["name"] = "first"
    first = job.write().start("collect")
    wait_for("the first run to be published", lambda: (job.output / ".tokenmill" / "folder.json").exists())
    (tmp_path / "other").mkdir()
    other = Job(tmp_path / "other")
    other.environment.update(job.environment)
    other.dataset("A1", prompts("A1", 3))
    other.tables["sglang"].pop("servers", None)
    ended = other.write().call("collect")
    one_sentence(ended, 4, "'first'", "tokenmill reset")
    before = job.call("status", "--json").out
    one_sentence(other.call("plan"), 4, "'first'", "TOKENMILL_REDIS_URL")
    ended = other.call("run")
    assert (ended.code, "'first'" in ended.err) == (4, True), ended.err
    assert "simulated" not in ended.out + ended.err, "nothing was started, or noted in the other run's Redis"
    assert json.loads(job.call("status", "--json").out)["sglang"] == json.loads(before)["sglang"] == "real"
    assert first.is_running


def test_a_redis_that_was_forgotten_beside_a_live_run_is_asked_for(job: Job) -> None:
    job.dataset("A1", prompts("A1", 3), max_tokens=500)
    collect = job.write().start("collect")
    wait_for("the run to be published", lambda: (job.output / ".tokenmill" / "folder.json").exists())
    named = job.environment.pop("TOKENMILL_REDIS_URL")
    shown = job.call("status")
    assert (shown.code, "TOKENMILL_REDIS_URL" in shown.err) == (0, True)
    one_sentence(job.call("budget", "set", "A1", "900"), 4, "a collector is at work", "TOKENMILL_REDIS_URL")
    job.environment["TOKENMILL_REDIS_URL"] = named
    assert "of 500 tokens" in job.call("budget").out
    assert collect.is_running


# -- servers


def test_a_server_that_is_not_there_is_waited_for_and_named(job: Job) -> None:
    job.dataset("A1", prompts("A1", 3))
    job.tables["sglang"]["servers"] = [NO_SERVER]
    one_sentence(job.write().call("run", "--wait", "1"), 5, NO_SERVER, "[sglang] servers")
    collect, push = job.start("collect"), job.start("push")
    one_sentence(job.call("work", "--wait", "1"), 5, NO_SERVER)
    assert collect.is_running and push.is_running
    assert job.call("verify").code == 0


def test_a_refused_key_names_its_variable_and_the_right_one_is_never_shown(
    job: Job, start_simulator: StartSimulator
) -> None:
    simulator = start_simulator(api_key="hunter2hunter2")
    job.dataset("A1", prompts("A1", 3), max_tokens="none")
    job.tables["sglang"]["servers"] = [simulator.url]
    one_sentence(job.write().call("run", "--wait", "1"), 5, simulator.url, "TOKENMILL_SGLANG_API_KEY")
    wrong = job.call("run", TOKENMILL_SGLANG_API_KEY="wrong-key-wrong-key")
    one_sentence(wrong, 5, "TOKENMILL_SGLANG_API_KEY")
    ended = job.call("run", "--verbose", TOKENMILL_SGLANG_API_KEY="hunter2hunter2")
    assert ended.code == 0, ended.out + ended.err
    job.check_all_answered()
    written = b"".join(path.read_bytes() for path in job.output.rglob("*") if path.is_file())
    for secret in ("hunter2hunter2", "wrong-key-wrong-key"):
        assert secret not in ended.out + ended.err + wrong.out + wrong.err
        assert secret.encode() not in written


@pytest.mark.parametrize(
    ("first", "second", "word"),
    [
        ({"model": "one"}, {"model": "two"}, "model: one -> two"),
        ({"weight_version": "v1"}, {"weight_version": "v2"}, "weight_version: v1 -> v2"),
    ],
)
def test_a_server_of_another_model_is_refused(
    job: Job, start_simulator: StartSimulator, first: dict[str, str], second: dict[str, str], word: str
) -> None:
    one, two = start_simulator(**first), start_simulator(**second)
    job.dataset("A1", prompts("A1", 10), max_tokens="none")
    one.hold()
    job.tables["sglang"]["servers"] = [one.url]
    parts = job.write().start_parts()
    wait_for("requests at the first server", lambda: one.state()["running"] == 10)
    one_sentence(job.call("work", "--server", two.url), 2, two.url, word)
    assert two.served(*job.names) == 0
    one.let_go()
    job.finish(*parts)
    job.check_all_answered()


def test_a_server_that_tokenizes_otherwise_is_refused(
    job: Job, tmp_path: Path, start_simulator: StartSimulator
) -> None:
    folder = tmp_path / "another-tokenizer"
    folder.mkdir()
    tokenizer = json.loads((TOKENIZER / "tokenizer.json").read_text())
    tokenizer["model"]["merges"] = []
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    simulator = start_simulator(tokenizer=str(folder))
    job.dataset("A1", prompts("A1", 3))
    job.tables["sglang"]["servers"] = [simulator.url]
    one_sentence(job.write().call("run"), 2, simulator.url, "tokenizer", "[model]")
    assert simulator.served("A1") == 0


def test_sampling_that_the_server_refuses_stops_before_a_job_is_claimed(
    job: Job, redis_server: RedisServer, start_simulator: StartSimulator
) -> None:
    simulator = start_simulator()
    job.dataset("A1", prompts("A1", 3))
    # Which ids there are, only the server knows; the rest is found in the run file.
    job.tables["sampling"]["logit_bias"] = {"99999": 1.0}
    job.tables["sglang"]["servers"] = [simulator.url]
    one_sentence(job.write().call("run"), 2, simulator.url, "logit_bias", "[sampling]")
    assert redis_server.client.llen("rq:queue:A1") == 3
    assert simulator.served("A1") == 0


# -- disks


@pytest.fixture
def unwritable(job: Job) -> Generator[Job]:
    """A run whose output folder takes no file: immutable for root, without permission for others."""
    job.output.mkdir()
    if os.geteuid() != 0:
        job.output.chmod(0o500)
    elif subprocess.run(["chattr", "+i", job.output], capture_output=True, check=False).returncode:
        pytest.skip("root may write anywhere here, and chattr +i does not work on this disk")
    try:
        yield job
    finally:
        if os.geteuid() == 0:
            subprocess.run(["chattr", "-i", job.output], check=True)
        else:
            job.output.chmod(0o700)


@pytest.mark.parametrize("command", ["run", "collect"])
def test_an_output_folder_without_permission_is_named(unwritable: Job, command: str) -> None:
    unwritable.dataset("A1", prompts("A1", 3))
    one_sentence(unwritable.write().call(command), 5, str(unwritable.output), "writable")


@pytest.fixture
def small_disk(job: Job) -> Generator[Callable[[str], None]]:
    """The output folder on a disk of 256 KB; calling it makes the disk another size."""
    job.output.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "none", job.output], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a small disk needs the right to mount one")
    try:
        yield lambda size: subprocess.run(["mount", "-o", f"remount,size={size}", job.output], check=True) and None
    finally:
        job.end_all()
        subprocess.run(["umount", "-l", job.output], check=True)


def test_a_full_disk_ends_the_run_and_loses_nothing(
    job: Job, redis_server: RedisServer, small_disk: Callable[[str], None], start_simulator: StartSimulator
) -> None:
    simulator = start_simulator()
    job.dataset("A1", prompts("A1", 150), max_tokens="none")
    job.tables["sglang"]["servers"] = [simulator.url]
    ended = job.write().call("run")
    one_sentence(ended, 5, "is full", str(job.output), "nothing is lost")
    written = job.lines("A1")
    assert 0 < len(written) < 150
    small_disk("20m")
    again = job.call("run")
    assert again.code == 0, again.out + again.err
    job.check_all_answered()
    assert job.lines("A1")[: len(written)] == written
    assert simulator.finished_tokens("A1") <= (150 + 16) * HELD_TOKENS


@pytest.mark.parametrize("kind", ["pipe", "folder"])
@pytest.mark.parametrize("command", ["collect", "verify", "status"])
def test_what_is_no_file_in_a_files_place_is_named(job: Job, kind: str, command: str) -> None:
    job.dataset("A1", prompts("A1", 3))
    path = job.output / "A1" / "raw_responses.jsonl"
    path.parent.mkdir(parents=True)
    os.mkfifo(path) if kind == "pipe" else path.mkdir()
    if command == "status":
        job.environment["TOKENMILL_REDIS_URL"] = NOWHERE
    one_sentence(job.write().call(command), 2, str(path), "move it away")


def test_a_damaged_folder_state_is_mended_as_it_says(local_job: Job) -> None:
    job = local_job
    job.dataset("A1", prompts("A1", 3), max_tokens="none")
    job.tables["simulator"] = {"lengths": {"*": {"shape": "constant", "mean": 20}}, "time_scale": 100}
    assert job.write().call("run").code == 0
    path = job.output / ".tokenmill" / "folder.json"
    path.write_bytes(b'{"id": "\xff')
    one_sentence(job.call("run"), 2, str(path), "delete it", "tokenmill reset")
    path.unlink()
    assert job.call("reset", "--yes").code == 0
    again = job.call("run")
    assert again.code == 0, again.err
    job.check_all_answered()


def test_an_output_folder_that_is_deleted_in_mid_run_is_told_and_the_next_run_goes_on(local_job: Job) -> None:
    job = local_job
    job.dataset("A1", prompts("A1", 30), max_tokens="none")
    job.tables["simulator"] = {"lengths": {"*": {"shape": "constant", "mean": 500}}, "time_scale": 20, "slots": 2}
    run = job.write().start("run")
    wait_for("some answers", lambda: job.count() > 0)
    shutil.rmtree(job.output)
    assert run.ended() == 5, run.text
    assert "Traceback" not in run.text
    (said,) = [line for line in run.text.splitlines() if line.startswith("tokenmill: ")]
    assert "a fault in Tokenmill itself" not in said
    assert str(job.output) in said and "run the same command again" in said
    again = job.call("run")
    assert again.code == 0, again.err
    job.check_all_answered()


def test_a_killed_run_leaves_nothing_in_the_temporary_folder_for_long(local_job: Job, tmp_path: Path) -> None:
    job = local_job
    job.dataset("A1", prompts("A1", 3), max_tokens="none")
    job.tables["simulator"] = {"lengths": {"*": {"shape": "constant", "mean": 500}}, "time_scale": 0.01}
    temporary = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        run = job.write().start("run", TMPDIR=str(temporary))
        wait_for("its Redis", lambda: list(temporary.glob("tm-*/redis.sock")))
        wait_for("its address", lambda: (job.output / ".tokenmill" / "redis.json").exists())
        run.kill()
        left = list(temporary.glob("tm-*"))
        assert left
        assert job.call("budget", "set", "A1", "1", TMPDIR=str(temporary)).code == 0
        assert not any(path.exists() for path in left)
    finally:
        job.end_all()
        shutil.rmtree(temporary)


# -- two of a kind


def test_a_second_collector_producer_and_run_are_refused(
    job: Job, redis_server: RedisServer, start_simulator: StartSimulator
) -> None:
    simulator = start_simulator()
    simulator.hold()
    job.dataset("A1", prompts("A1", 20), max_tokens="none")
    job.tables["sglang"]["servers"] = [simulator.url]
    parts = job.write().start_parts()
    wait_for("requests", lambda: simulator.state()["running"] == 16)
    for command in ("collect", "push", "run"):
        refused = job.call(command)
        one_sentence(refused, 4, "already")
        assert refused.out == ""  # before anything was begun
    # The same run with a folder of its own, so that only Redis can tell.
    job.tables["run"]["output"] = "elsewhere"
    one_sentence(job.write().call("collect"), 4, "'test'", "another output folder")
    job.tables["run"]["output"] = "out"
    one_sentence(job.write().call("reset", "--yes"), 4, "collector")
    simulator.let_go()
    job.finish(*parts)
    job.check_all_answered()


def test_a_second_run_on_its_own_redis_is_refused(local_job: Job) -> None:
    job = local_job
    job.dataset("A1", prompts("A1", 3), max_tokens="none")
    job.tables["simulator"] = {"lengths": {"*": {"shape": "constant", "mean": 500}}, "time_scale": 0.01}
    first = job.write().start("run")
    wait_for("the first one to go on", lambda: "started the simulated one" in first.text)
    one_sentence(job.call("run"), 4, "already", str(job.output))
    assert first.is_running

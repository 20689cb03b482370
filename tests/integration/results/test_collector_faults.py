"""The collector while things break: nothing lost, nothing counted twice, checked by verify."""

import os
import random
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from budget import keys, runbook
from budget.connections import RedisAway, connect
from budget.errors import Problem
from budget.locks import Held, LockLost
from budget.runbook import AnotherRun, Changed
from results.entry import Entry
from results.errors import BadFolder, DiskFault, FileChanged, FolderTaken, NotWritable
from results.folder import OutputFolder
from results.sink import Sink
from results.stream import Stream
from results.summary import rejected_now
from results.verify import verify
from workers.contracts import job_id

NAMES = ["A1", "B2"]


class Committers:
    """Threads that commit answers without a pause, as workers would, until told to stop."""

    def __init__(self, rig: Any, count: int = 3) -> None:
        self._rig = rig
        self._stop = threading.Event()
        self.committed: list[tuple[str, str]] = []
        self._threads = [threading.Thread(target=self._body, args=(number,)) for number in range(count)]

    def __enter__(self) -> "Committers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def _body(self, number: int) -> None:
        count = 0
        with connect(self._rig.server.url) as client:
            while not self._stop.is_set():
                name, own = NAMES[count % 2], f"{number}/{count}"
                try:
                    self._rig.commit(name, own, tokens=1 + count % 20, turns=1 + count % 3, client=client)
                except Problem:
                    self._stop.wait(0.02)
                    continue
                self.committed.append((name, own))
                count += 1
                self._stop.wait(0.001)

    def reach(self, count: int) -> None:
        goal = len(self.committed) + count
        self._rig.until(lambda: len(self.committed) >= goal, f"{count} commits")


def test_a_collector_killed_at_random_points_loses_and_doubles_nothing(
    rig: Any, spawn: Callable[..., "subprocess.Popen[bytes]"]
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    with Committers(rig) as committers:
        for _ in range(8):
            process = spawn()
            rig.until(rig.is_seeded, "the collector to seed")
            committers.reach(dice.randrange(1, 150))
            process.kill()
            process.wait()
            committers.reach(20)
    rig.collect()
    rig.written()
    assert rig.totals("A1").answers + rig.totals("B2").answers == len(committers.committed)
    rig.check()
    rig.halt()


def test_an_emptied_redis_is_seeded_again(rig: Any) -> None:
    rig.collect()
    with Committers(rig) as committers:
        for _ in range(3):
            committers.reach(60)
            rig.written_once()
            rig.client.flushall()
            rig.until(lambda: runbook.is_ready(rig.client), "the files to be seeded again")
    rig.written()
    assert rig.client.hget(keys.budget("A1"), "cap") == b"10000000"
    assert runbook.published(rig.client)["name"] == "trial"
    rig.check()
    rig.halt()


def test_redis_killed_and_started_again_beneath_it(rig: Any) -> None:
    rig.collect()
    with Committers(rig) as committers:
        for _ in range(3):
            committers.reach(60)
            rig.server.restart()
            rig.until(rig.is_seeded, "the new Redis to be seeded")
    rig.written()
    rig.check()
    rig.halt()


def test_half_a_transaction_at_the_end_of_redis_file_never_runs(rig: Any) -> None:
    """What a power cut leaves. Redis 7.0 passes over it, keeps it, and runs it with what follows at its next start."""
    rig.collect()
    for number in range(5):
        rig.commit("A1", f"p{number}")
    rig.written()
    rig.server.kill()
    (log,) = (rig.server.folder / "appendonlydir").glob("*.incr.aof")
    data = log.read_bytes()
    log.write_bytes(data[: data.rindex(b"committed") + 3])
    rig.server.start()
    rig.until(rig.is_seeded, "the shortened Redis to be seeded")
    rig.until(lambda: rig.client.info("persistence")["aof_last_rewrite_time_sec"] >= 0, "its file to be written anew")
    rig.commit("A1", "p5")
    rig.written()
    rig.server.restart()
    rig.until(rig.is_seeded, "the new Redis to be seeded")
    assert rig.spent("A1") == 6 * 7
    rig.check()
    rig.halt()


def test_a_stale_copy_of_redis_is_mended(rig: Any, tmp_path: Path) -> None:
    rig.collect()
    for number in range(10):
        rig.commit("A1", f"p{number}")
    rig.written()
    rig.halt()
    rig.server.kill()
    shutil.copytree(rig.server.folder / "appendonlydir", tmp_path / "copy")
    rig.server.start()
    rig.collect()
    for number in range(10, 30):
        rig.commit("A1", f"p{number}")
    rig.written()
    rig.server.kill()
    shutil.rmtree(rig.server.folder / "appendonlydir")
    shutil.copytree(tmp_path / "copy", rig.server.folder / "appendonlydir")
    rig.server.start()
    rig.until(rig.is_seeded, "the stale Redis to be seeded")
    rig.until(lambda: rig.spent("A1") == 210, "the files' numbers")
    rig.check()
    rig.halt()


def test_answers_whose_file_is_gone_are_forgotten(rig: Any) -> None:
    rig.collect()
    for number in range(10):
        rig.commit("A1", f"p{number}")
    rig.reject("A1", "r")
    rig.written()
    rig.halt()
    rig.folder.answers("A1").write_bytes(rig.record("A1", "p3", 7))
    rig.folder.rejected("A1").unlink()
    rig.collect()
    assert rig.spent("A1") == 7
    rig.check()
    rig.halt()


def meanwhile(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, action: Callable[[], object]) -> None:
    """Have something happen just after the collector's next call of a method: between its steps."""
    real = getattr(owner, name)
    once = [action]

    def wrapped(self: object, *args: Any, **options: Any) -> Any:
        answer = real(self, *args, **options)
        if once:
            once.pop()()
        return answer

    monkeypatch.setattr(owner, name, wrapped)


def test_a_retry_between_writing_and_telling_is_not_gone_over(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rejection is read just after a seeding, and taken back before the ledger is told of it once more."""
    rig.write("A1", b'{"id":"b"}\n', "rejected.jsonl")
    again = [lambda: rig.retry("A1", "b"), lambda: rig.reject("A1", "b")]
    meanwhile(monkeypatch, Entry, "set_ready", lambda: [step() for step in again])
    meanwhile(monkeypatch, Sink, "write", lambda: rig.retry("A1", "b"))
    rig.collect()
    rig.written()
    rig.until(lambda: not rig.client.hexists(keys.done("A1"), job_id("A1", "b")), "the prompt to be free")
    assert [own for _, own in rejected_now(rig.folder.path, "A1")] == []
    rig.check()


def test_an_answer_between_writing_and_forgetting_is_not_forgotten(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The retry of a rejected prompt is read just after a seeding, and its answer comes before the forgetting."""
    rig.write("A1", b'{"id":"b"}\n', "rejected.jsonl")
    meanwhile(monkeypatch, Entry, "set_ready", lambda: rig.retry("A1", "b"))
    meanwhile(monkeypatch, Sink, "write", lambda: rig.commit("A1", "b", 9))
    rig.collect()
    rig.written()
    rig.until(lambda: rig.spent("A1") == 9, "the answer to count")
    assert rig.totals("A1").answers == 1
    rig.check()


def test_a_retry_during_the_seeding_is_not_undone(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.write("A1", b'{"id":"b"}\n', "rejected.jsonl")
    rig.collect()
    rig.halt()
    meanwhile(monkeypatch, Stream, "lengths", lambda: rig.retry("A1", "b"))
    rig.collect()
    rig.written()
    rig.until(lambda: not rig.client.hexists(keys.done("A1"), job_id("A1", "b")), "the prompt to be free")
    rig.check()


def test_a_file_deleted_under_it_stops_it_before_anything_is_lost(rig: Any) -> None:
    rig.collect()
    rig.commit("A1", "one")
    rig.written()
    rig.folder.answers("A1").unlink()
    rig.commit("A1", "two")
    problem = rig.ended()
    assert isinstance(problem, FileChanged) and "was deleted" in str(problem)
    assert rig.client.xlen(keys.results("A1")) == 1
    assert not rig.client.exists(keys.COLLECTOR_LOCK)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 KB."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", place]).returncode:
        pytest.skip("mounting a small disk needs root")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def test_a_full_disk_stops_it_and_loses_nothing(rig: Any, small_disk: Path) -> None:
    rig.folder = OutputFolder(small_disk / "out")
    rig.config = rig.with_config(output=str(small_disk / "out"))
    rig.collect()
    number = 0
    while rig.outcome is None:
        rig.commit("A1", f"p{number}", tokens=100)
        number += 1
    problem = rig.ended()
    assert isinstance(problem, DiskFault)
    assert str(rig.folder.answers("A1")) in str(problem) and f"the disk at {small_disk} is full" in str(problem)
    assert rig.folder.answers("A1").read_bytes()[-1:] == b"\n"
    assert rig.totals("A1").answers + rig.client.xlen(keys.results("A1")) >= number
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    rig.collect()
    rig.written()
    assert rig.totals("A1").answers == number
    rig.check()
    rig.halt()


def test_a_file_that_may_not_grow_is_cut_back_to_whole_lines(
    rig: Any, spawn: Callable[..., "subprocess.Popen[bytes]"]
) -> None:
    process = spawn(limit=20_000)
    number = 0
    while process.poll() is None:
        rig.commit("A1", f"p{number}", tokens=100)
        number += 1
    assert process.returncode == 5
    assert process.stderr is not None and b"may not grow" in process.stderr.read()
    data = rig.folder.answers("A1").read_bytes()
    assert data == b"" or data[-1:] == b"\n"
    rig.collect()
    rig.written()
    assert rig.totals("A1").answers == number
    rig.check()
    rig.halt()


@pytest.mark.skipif(os.geteuid() != 0, reason="running as another user needs root")
def test_a_folder_of_another_user_is_refused_in_a_sentence(
    rig: Any, spawn: Callable[..., "subprocess.Popen[bytes]"]
) -> None:
    output = rig.server.folder / "out"
    output.mkdir()
    rig.server.folder.chmod(0o755)
    rig.config = rig.with_config(output=str(output))
    process = spawn(user=65534)
    assert process.wait(60) == 5
    assert process.stderr is not None and f"cannot write {output}".encode() in process.stderr.read()


def test_a_second_collector_is_refused(rig: Any, tmp_path: Path) -> None:
    rig.collect()
    with pytest.raises(FolderTaken, match=f"process {os.getpid()}"):
        rig.collector().run()
    with pytest.raises(AnotherRun, match="another output folder"):
        rig.collector(config=rig.with_config(output=str(tmp_path / "other"))).run()
    copy = tmp_path / "copy"  # of the whole folder, as on another machine: only Redis can tell
    shutil.copytree(rig.config.output, copy)
    with pytest.raises(Held, match="already running"):
        rig.collector(config=rig.with_config(output=str(copy))).run()
    rig.halt()
    with pytest.raises(AnotherRun):
        rig.collector(config=rig.with_config(output=str(tmp_path / "other")), stop=threading.Event()).run()


def test_it_leaves_when_another_took_the_run_over(rig: Any) -> None:
    rig.collect()
    rig.client.delete(keys.COLLECTOR_LOCK)
    rig.client.set(keys.COLLECTOR_LOCK, b'{"token":"x","host":"h","pid":1,"process":"elsewhere/1/1"}')
    problem = rig.ended()
    assert isinstance(problem, LockLost)
    assert rig.client.exists(keys.COLLECTOR_LOCK)


def test_changed_sampling_and_another_run_are_refused(rig: Any) -> None:
    rig.collect()
    rig.halt()
    changed = [msgspec.structs.replace(dataset, sampling={"temperature": 0.5}) for dataset in rig.config.datasets]
    with pytest.raises(Changed, match="temperature"):
        rig.collector(config=rig.with_config(datasets=changed), stop=threading.Event()).run()
    rig.client.flushall()
    with pytest.raises(Changed, match="temperature"):
        rig.collector(config=rig.with_config(datasets=changed), stop=threading.Event()).run()
    with pytest.raises(BadFolder, match="'trial', not of 'second'"):
        rig.collector(config=rig.with_config(name="second"), stop=threading.Event()).run()


def test_without_redis_it_waits_a_while_and_says_so(rig: Any, caplog: pytest.LogCaptureFixture) -> None:
    rig.server.kill()
    with pytest.raises(RedisAway, match="no Redis at unix://"):
        rig.collector(wait_s=0.3).run()
    assert "waiting up to" in caplog.text
    assert not rig.folder.is_locked()


def test_a_redis_that_comes_late_is_waited_for(rig: Any) -> None:
    rig.server.kill()
    late = threading.Thread(target=rig.server.start)
    late.start()
    rig.collect()
    late.join()
    rig.commit("A1", "x")
    rig.written()
    rig.check()
    rig.halt()


def test_stopped_while_redis_is_away_it_leaves(rig: Any) -> None:
    rig.collect()
    rig.server.kill()
    rig.stop.set()
    assert rig.ended() is False


def test_an_unsafe_redis_is_refused(rig: Any) -> None:
    rig.client.config_set("maxmemory-policy", "allkeys-lru")
    with pytest.raises(Problem, match="noeviction") as raised:
        rig.collector().run()
    assert raised.value.exit_code == 4


def test_a_redis_out_of_memory_is_emptied_all_the_same(rig: Any) -> None:
    """Results must flow out of a full Redis, or it would stay full."""
    rig.collect()
    for number in range(5):
        rig.commit("A1", f"p{number}")
    rig.client.config_set("maxmemory", 1)
    rig.written()
    assert rig.totals("A1").answers == 5
    rig.client.config_set("maxmemory", 0)
    rig.commit("A1", "after")
    rig.written()
    rig.check()
    rig.halt()


def test_a_stream_of_another_type_is_a_sentence(rig: Any) -> None:
    rig.client.set(keys.results("A1"), "x")
    with pytest.raises(Problem, match="another database") as raised:
        rig.collector().run()
    assert raised.value.exit_code == 5


def test_verify_says_what_it_could_not_compare(rig: Any) -> None:
    rig.collect()
    rig.commit("A1", "x")
    rig.written()
    rig.halt()
    rig.commit("A1", "y")
    report = verify(rig.config, rig.client)
    assert report.findings == []
    assert report.notes == ["A1: ledger and files were not compared: still running"]
    rig.client.flushall()
    assert "start the job" in verify(rig.config, rig.client).notes[0]


def test_verify_finds_answers_that_only_the_ledger_has_and_a_start_mends_it(rig: Any) -> None:
    rig.collect()
    rig.commit("A1", "x")
    rig.written()
    rig.halt()
    rig.commit("A1", "lost", 30)
    rig.client.xtrim(keys.results("A1"), maxlen=0, approximate=False)
    findings = " ".join(verify(rig.config, rig.client).findings)
    for words in ("the files hold 7 tokens, the counter says 37", "with 30 tokens", "seeds the ledger"):
        assert words in findings, (words, findings)
    rig.collect()
    rig.check()


def test_verify_finds_a_ledger_that_disagrees_with_itself(rig: Any) -> None:
    rig.collect()
    rig.commit("A1", "x")
    rig.written()
    rig.halt()
    rig.client.incrby(keys.spent("A1"), 5)
    rig.client.hset(keys.budget("A1"), "reserved", 9)
    rig.client.hincrby(keys.ages("A1"), "f3", 1)
    rig.client.hincrby(keys.ages("A1"), "c0", 1)
    rig.client.zadd(keys.expiry("A1"), {"A1-x": 1})
    findings = " ".join(verify(rig.config, rig.client).findings)
    for words in ("says 12 tokens", "ledger says 9", "bucket 3 of ages", "bucket 0 of lengths", "1 have an expiry"):
        assert words in findings, (words, findings)
    # A collector counts reservations anew from the leases; all else that disagrees needs an empty database.
    assert findings.count("`tokenmill reset`") == len(verify(rig.config, rig.client).findings) - 1


def test_a_read_only_disk_is_a_sentence(rig: Any, small_disk: Path) -> None:
    rig.config = rig.with_config(output=str(small_disk / "out"))
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(NotWritable, match="read-only"):
        rig.collector().run()

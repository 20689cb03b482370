"""S3, S5, S8: SGLang servers killed, slow to start, slow to answer, and prompts that end servers or workers."""

import contextlib
import json
import signal
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path

from tests.e2e_support import TIMING, Job, RedisServer, prompts, wait_for
from tests.faults.scenes import NAMES, SLOTS, TOKENS, MortalSimulator, Scene
from tests.tcp_proxy import TcpProxy
from workers.contracts import job_id
from workers.simulator.faults import Fault

Wire = Callable[[str], TcpProxy]
IN_FLIGHT = 2 * SLOTS * TOKENS * 3


def mortal_of(scene: Scene) -> MortalSimulator:
    assert isinstance(scene.simulator, MortalSimulator)
    return scene.simulator


def test_s3_killed_at_a_quarter_a_half_and_three_quarters(scene: Scene) -> None:
    """SIGKILL, nobody listens for a while, then 503 to everything for a while, then it serves."""
    simulator = mortal_of(scene)
    scene.start()
    for share in (0.25, 0.5, 0.75):
        scene.until(share)
        simulator.kill()
        wait_for("a worker to say so", lambda: any("is at fault" in part.text for part in scene.parts.values()))
        simulator.revive(faults=[Fault(mode="slow_start", seconds=1.0)])
        wait_for("the server to be loaded", lambda: simulator.state()["status"] == "up")
        scene.recovered()
    scene.ends("S3 SGLang killed -9, away, then loading", most_again=3 * IN_FLIGHT)
    assert not any(scene.job.rejected(name) for name in NAMES), "no prompt pays for a server's death"
    assert int(scene.redis.client.hget("run", "deaths")) == 3, "two workers saw each of them"


def test_s3_a_server_that_is_away_is_asked_seldom(scene: Scene, wire: Wire) -> None:
    """Counted on the wire: what workers try while it is cut, in five times the pause between two tries."""
    link = wire(scene.simulator.url.removeprefix("http://"))
    scene.job.tables["sglang"]["servers"] = [f"http://{link.address}"]
    scene.job.write()
    scene.start()
    before = link.accepted
    link.cut()
    wait_for("some tries", lambda: link.accepted - before >= 8)
    assert link.accepted - before < 200
    link.heal()
    scene.recovered()
    scene.ends("S3 the wire to SGLang cut", most_again=IN_FLIGHT)


def test_s5_some_answers_drip_some_never_come(
    job: Job, redis_server: RedisServer, mortal: Callable[..., MortalSimulator]
) -> None:
    """The others go on; a slot falls free at the deadline; what never works is rejected; the run ends."""
    scene = Scene(job, redis_server, mortal(speed=8))
    scene.job.tables["sglang"]["answer_s"] = 3
    stuck = prompts("A1", 1)[0]["input_ids"][1] + 7
    scene.job.write()
    scene.simulator.faults(
        Fault(mode="hang", token=stuck, dataset="A1"),
        Fault(mode="drip", count=3, after=20, seconds=1),
        Fault(mode="hang", count=3, after=40),
    )
    scene.start()
    scene.ends("S5 answers that drip, hang, never come", most_again=6 * 600, answered=False)
    (rejected,) = scene.job.rejected("A1")
    assert (rejected["reason"], rejected["attempts"]) == ("timeout", 3)
    assert scene.answered == scene.total - 1


def test_s5_an_answer_of_many_leases(scene: Scene) -> None:
    """Its lease is renewed all the while: one attempt, nothing twice."""
    scene.simulator.hold()
    for name in ("collect", "push"):
        scene.parts[name] = scene.job.start(name)
    scene.work("w0")
    wait_for("requests in flight", lambda: scene.in_flight == SLOTS)
    first = scene.redis.client.hgetall("budget:A1:leases")
    began = scene.redis.client.time()[0]
    wait_for("two leases", lambda: scene.redis.client.time()[0] - began > 2 * TIMING["lease_ms"] / 1000)
    assert scene.redis.client.hgetall("budget:A1:leases").keys() == first.keys()
    scene.simulator.let_go()
    scene.recovered()
    scene.ends("S5 answers that take two leases", most_again=0)
    assert {line["attempt"] for name in NAMES for line in scene.job.lines(name)} == {1}


def test_s8_a_prompt_that_kills_servers_and_others_that_cannot_be_sent(
    job: Job, redis_server: RedisServer, mortal: Callable[..., MortalSimulator]
) -> None:
    """One crashes SGLang, one is always aborted; beside them what is damaged, too long, huge, or odd but good."""
    simulator = mortal(crash_s=0.3)
    scene = Scene(job, redis_server, simulator)
    tell_context(scene.job.folder / "tokenizer")
    deadly, aborted = 1901, 1902
    rows: list[object] = [
        *prompts("A1", 60),
        {"id": "deadly", "input_ids": [5, deadly]},
        {"id": "aborted", "input_ids": [5, aborted]},
        {"id": "long", "input_ids": [5] * 40_000},
        {"id": "huge", "prompt": "word " * 4_000_000},
        {"id": "half", "prompt": "half a pair: \ud800"},
        {"id": "odd", "prompt": "nothing \u0000, a line \u2028 and an end \u0085"},
    ]
    lines = [*(json.dumps(row).encode() for row in rows), b'{"id": "torn", "input_ids": [5', b"\xff\xfe\xfa"]
    scene.job.dataset("A1", b"\n".join([*lines, b""]), max_tokens="none")
    scene.job.write()
    faults = [Fault(mode="crash", token=deadly), Fault(mode="abort", token=aborted)]
    simulator.faults(*faults)
    deaths: list[float] = []

    def nurse(stop: threading.Event) -> None:
        while not stop.wait(0.05):
            if simulator.is_dead:
                deaths.append(time.monotonic())
                simulator.revive(faults=faults, crash_s=0.3)

    with in_the_background(nurse):
        scene.start()
        scene.ends("S8 a prompt that kills SGLang, and seven bad rows", most_again=5 * IN_FLIGHT, answered=False)
    reasons = {line["id"]: line["reason"] for line in scene.job.rejected("A1")}
    assert len(deaths) == 4
    assert {reasons.pop(name) for name in ("deadly", "aborted", "long", "huge")} == {"poison", "aborted", "too_long"}
    assert sorted(reasons.values()) == ["malformed", "malformed", "surrogate"]
    assert scene.answered == scene.total - 7 and "odd" in {line["id"] for line in scene.job.lines("A1")}


def test_s8_two_prompts_that_kill_servers(
    job: Job, redis_server: RedisServer, mortal: Callable[..., MortalSimulator]
) -> None:
    """Neither may ride beside innocent suspects who would pay for it: both are found, and nobody else."""
    simulator = mortal(crash_s=0.1)
    scene = Scene(job, redis_server, simulator)
    deadly = [{"id": f"deadly/{number}", "input_ids": [5, 1901, number]} for number in range(3, 5)]
    scene.job.dataset("A1", [*deadly, *prompts("A1", 30)], max_tokens="none")
    scene.job.dataset("B2", prompts("B2", 10), max_tokens="none")
    scene.job.tables["run"]["seed"] = False
    scene.job.write()
    faults = [Fault(mode="crash", token=1901)]
    simulator.faults(*faults)

    def nurse(stop: threading.Event) -> None:
        while not stop.wait(0.05):
            if simulator.is_dead:
                simulator.revive(faults=faults, crash_s=0.1)

    with in_the_background(nurse):
        for name in ("collect", "push"):
            scene.parts[name] = scene.job.start(name)
        scene.work("w0")
        scene.ends("S8 two prompts that kill SGLang", most_again=20 * IN_FLIGHT, answered=False)
    assert {line["id"] for line in scene.job.rejected("A1")} == {"deadly/3", "deadly/4"}
    assert not scene.job.rejected("B2") and scene.answered == 40


def tell_context(tokenizer: Path) -> None:
    """The tokenizer's folder as that of a model, which says how long its context is."""
    held = list(tokenizer.resolve().iterdir())
    tokenizer.unlink()
    tokenizer.mkdir()
    for path in held:
        (tokenizer / path.name).symlink_to(path)
    config = {"max_position_embeddings": 32_768}
    (tokenizer / "config.json").write_text(json.dumps(config))


def test_s8_a_prompt_that_kills_workers(scene: Scene) -> None:
    """Whoever holds it is killed; it ends as poison, and what was in flight beside it is answered."""
    prompt = "A1/0"
    deadly = job_id("A1", prompt).encode()
    kills: list[str] = []

    def holder() -> str:
        lease = scene.redis.client.hget("budget:A1:leases", deadly)
        return lease.decode().split(" ")[-1] if lease is not None else ""

    def murderer(stop: threading.Event) -> None:
        while not stop.wait(0.02):
            if (name := holder()) not in scene.parts:
                continue
            # It may be giving a suspect back that found no seat: then it is not this prompt that it dies of.
            scene.parts[name].send(signal.SIGSTOP)
            if {holder(), holder()} != {name}:
                scene.parts[name].send(signal.SIGCONT)
                continue
            kills.append(name)
            scene.parts.pop(name).kill()
            scene.work(f"heir-{len(kills)}")

    with in_the_background(murderer):
        scene.start()
        scene.ends("S8 a prompt that kills workers", most_again=5 * IN_FLIGHT, answered=False)
    logs = "\n".join(part.text for part in scene.job.started)
    assert len(kills) == 4, logs
    (rejected,) = scene.job.rejected("A1")
    assert (rejected["id"], rejected["reason"]) == (prompt, "poison")
    assert scene.answered == scene.total - 1


@contextlib.contextmanager
def in_the_background(work: Callable[[threading.Event], None]) -> Generator[None]:
    """Runs `work` in a thread until the block ends."""
    stop = threading.Event()
    thread = threading.Thread(target=work, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()

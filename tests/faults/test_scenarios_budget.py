"""S12, S10, S11: caps that move all the time, a producer killed while its file is edited, parts started twice."""

import json
import random
import signal
import time

from budget import runbook
from tests.e2e_support import prompts, wait_for
from tests.faults.scenes import NAMES, SLOTS, TOKENS, Scene


def test_s12_a_cap_changed_a_hundred_times(scene: Scene) -> None:
    """Below what is spent, to 0, to none and up again; under `strict`, so that no cap of any moment is passed."""
    draw = random.Random(12)
    scene.job.tables["run"]["admission"] = "strict"
    scene.job.tables["sampling"]["max_new_tokens"] = 300
    scene.job.dataset("A1", prompts("A1", 150), max_tokens=3000)
    scene.job.write()
    for name in ("collect", "push"):
        scene.parts[name] = scene.job.start(name, "--stay")
    for name in ("w0", "w1"):
        scene.work(name, "--stay")
    highest = 3000
    scene.more()
    for change in range(100):
        cap = draw.choice([0, 1, draw.randrange(8000), scene.redis.spent("A1"), 300])
        highest = max(highest, cap)
        runbook.set_cap(scene.redis.client, "A1", cap)
        time.sleep(draw.uniform(0, 0.05))
        if change % 33 == 0:
            assert scene.job.call("verify").code == 0
    assert scene.job.tokens("A1") <= highest
    # Down to what is spent: it drops the rest. Then up: exactly what was dropped comes back.
    runbook.set_cap(scene.redis.client, "A1", 0)
    wait_for("the rest to be dropped", lambda: not scene.redis.client.llen("rq:queue:A1") and not scene.in_flight)
    assert scene.redis.spent("A1") <= highest
    last = scene.redis.spent("A1") + 2000
    runbook.set_cap(scene.redis.client, "A1", last)
    wait_for("the raised cap", lambda: scene.redis.spent("A1") > last - 300)
    for part in scene.parts.values():
        part.send(signal.SIGTERM)
    for part in scene.parts.values():
        assert part.ended() == 3, part.text
    scene.parts = dict(zip(("collect", "push", "w9"), scene.job.start_parts(), strict=True))
    scene.ends("S12 a cap changed 100 times", most_again=2 * SLOTS * TOKENS, answered=False)
    assert last - 300 < scene.job.tokens("A1") <= max(last, highest)
    assert len(scene.job.lines("A1")) + len(scene.job.dropped("A1")) == 150
    assert len(scene.job.lines("B2")) == 80


def test_s10_the_producer_killed_while_its_file_grows(scene: Scene) -> None:
    """Killed four times; each time the prompt file has new rows, one of them with an id that was there before."""
    rows = prompts("A1", 20)
    scene.job.dataset("A1", rows, max_tokens="none")
    scene.job.write()
    scene.start()
    for step in range(4):
        scene.parts.pop("push").kill()
        rows += [{"id": f"new/{step}/{n}", "input_ids": [7, step, n + 1]} for n in range(10)]
        rows.append({"id": "A1/0", "input_ids": [9, step]})
        scene.job.dataset("A1", rows, max_tokens="none")
        scene.parts = {"collect": scene.parts.pop("collect"), "push": scene.job.start("push"), **scene.parts}
        scene.recovered()
    scene.ends("S10 producer killed -9, its file edited", most_again=0, answered=False)
    ids = [line["id"] for line in scene.job.lines("A1")]
    assert sorted(ids) == sorted(
        [row["id"] for row in rows if row["id"] != "A1/0"] + ["A1/0", *(f"A1/0~{n}" for n in range(2, 6))]
    )


def test_s11_everything_started_twice_at_once(scene: Scene) -> None:
    """Two collectors, two producers, one with other parameters: one of each goes on, the others leave and say why."""
    pairs = {name: [scene.job.start(name) for _ in range(2)] for name in ("collect", "push")}
    scene.work("w0")
    scene.more()
    other = scene.job.folder / "other.toml"
    other.write_text(scene.job.file.read_text().replace('"max_new_tokens" = 600', '"max_new_tokens" = 500'))
    assert '"max_new_tokens" = 500' in other.read_text()
    command = [part if part != str(scene.job.file) else str(other) for part in scene.job.command("push")]
    refused = scene.job.start_command(command)
    assert refused.ended() == 2, refused.text
    assert "collected under something else" in refused.text
    for name, pair in pairs.items():
        wait_for(f"one {name} to leave", lambda pair=pair: sum(part.is_running for part in pair) == 1)
        (loser,) = [part for part in pair if not part.is_running]
        assert loser.ended() == 4 and "already" in loser.text, loser.text
        scene.parts = {name: next(part for part in pair if part is not loser), **scene.parts}
    scene.ends("S11 two collectors, two producers, other parameters", most_again=0)
    limits = {json.dumps(line["sampling"], sort_keys=True) for name in NAMES for line in scene.job.lines(name)}
    assert len(limits) == 1

"""S6: clocks that are wrong. Leases, locks and deadlines are told by Redis, or by clocks that only count.

A `sitecustomize` shifts the wall clock of one Python process: `time.time` and `datetime.now`, which is all
of it that Python code can read. The shift stands in a file that is read each time, so it may step in mid-run.
"""

from pathlib import Path

import pytest

from tests.e2e_support import ROOT, wait_for
from tests.faults.scenes import SLOTS, Scene

HOUR, DAY = 3600, 86400

SHIFTED = """
import datetime, os, time
real = time.time
def shifted():
    with open(os.environ["CLOCK_SHIFT"]) as file:
        return real() + float(file.read() or 0)
class Shifted(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(shifted(), tz)
    @classmethod
    def utcnow(cls):
        return cls.now(datetime.timezone.utc).replace(tzinfo=None)
time.time = shifted
time.time_ns = lambda: int(shifted() * 1e9)
datetime.datetime = Shifted
"""


class Clock:
    """A wall clock of one's own for the processes that get its environment."""

    def __init__(self, folder: Path, name: str, shift_s: int) -> None:
        self._file = folder / f"{name}.shift"
        (folder / "clock").mkdir(exist_ok=True)
        (folder / "clock" / "sitecustomize.py").write_text(SHIFTED)
        self.environment = {"PYTHONPATH": f"{folder / 'clock'}:{ROOT}", "CLOCK_SHIFT": str(self._file)}
        self.set(shift_s)

    def set(self, shift_s: int) -> None:
        beside = self._file.with_suffix(".new")
        beside.write_text(str(shift_s))
        beside.replace(self._file)


def shifted(scene: Scene, name: str, shift_s: int) -> Clock:
    """Starts the part of that name (else a worker called so) with a clock of its own."""
    clock = Clock(scene.job.folder, name, shift_s)
    if name in ("collect", "push"):
        scene.parts[name] = scene.job.start(name, **clock.environment)
    else:
        scene.work(name, **clock.environment)
    return clock


def test_s6_every_part_has_another_time(scene: Scene) -> None:
    """Workers an hour ahead and an hour behind, the producer a day ahead, the collector a day behind."""
    for name, shift in (("collect", -DAY), ("push", DAY), ("ahead", HOUR), ("behind", -HOUR)):
        shifted(scene, name, shift)
    wait_for("both in flight", lambda: set(scene.redis.holders(*scene.job.names)) == {"ahead", "behind"})
    cost = scene.ends("S6 clocks an hour and a day apart", most_again=0)
    assert cost.again == 0
    made = {line["worker"]: line["created_at"] for name in scene.job.names for line in scene.job.lines(name)}
    assert abs(made["ahead"] - made["behind"] - 2 * HOUR) < HOUR, "the clocks were shifted"


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_s6_all_clocks_step_in_mid_run(scene: Scene, step: int) -> None:
    """As at a time server's correction, or at the end of summer time: no lease runs out early, none for ever."""
    clocks = [shifted(scene, name, 0) for name in ("collect", "push", "w0", "w1")]
    scene.until(0.2)
    for clock in clocks:
        clock.set(step)
    scene.until(0.5)
    wait_for("both in flight", lambda: set(scene.redis.holders(*scene.job.names).values()) == {SLOTS})
    scene.parts.pop("w1").kill()
    scene.recovered()
    wait_for("the dead worker's jobs to come back", lambda: "w1" not in scene.redis.holders(*scene.job.names))
    scene.ends(f"S6 all clocks step by {step // HOUR:+d} h, a worker killed", most_again=SLOTS * 240)

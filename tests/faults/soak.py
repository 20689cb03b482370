"""The soak: a run under a random schedule of faults, one schedule per seed, and then the same command to its end.

    python -m tests.faults.soak --new 3       # three new seeds
    python -m tests.faults.soak 17 18         # these seeds

A line per seed: what was done, tokens generated and committed, seconds until the run went on. What must hold
afterwards is checked by `tokenmill verify` and by `judge`; a seed that fails keeps its folder and says where.
"""

import argparse
import contextlib
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer

from tests.e2e_support import TOKENIZER, Job, RedisServer, Simulator, prompts, simulator_config, wait_for
from tests.faults.scenes import SHORT_LEASES, MortalSimulator, account
from tests.faults.trouble import Trouble
from tests.support import server_binary
from tests.tcp_proxy import TcpProxy
from workers.contracts import job_id
from workers.simulator.lengths import LengthSpec

COUNT, SLOTS, MEAN, MOST = 90, 12, 60, 300
CHAOS_S, FEWEST = 8.0, 8
# A hundredth of it is none.
FEW_RESULTS = 60
TEXTS = Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))
NEWEST = 1_000_000


class Seed(NamedTuple):
    """What came of one seed."""

    seed: int
    faults: list[str]
    generated: int
    committed: int
    recovered_s: float
    seconds: float
    problem: str = ""

    def __str__(self) -> str:
        ratio = self.generated / max(1, self.committed)
        end = f"FAILED: {self.problem}" if self.problem else "ok"
        return (
            f"seed {self.seed}: {end}; {len(self.faults)} faults ({', '.join(self.faults)}); generated/committed "
            f"{self.generated:,}/{self.committed:,} = {ratio:.3f}; went on after {self.recovered_s:.1f} s; "
            f"{self.seconds:.0f} s in all"
        )


class Soak:
    """One seed's run: its folder, its servers, its wires, and the checks at its end."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.draw = random.Random(seed)
        binary = server_binary(self.draw.choice(["redis-server", "valkey"])) or server_binary("valkey")
        self.job = Job(folder)
        self.redis = RedisServer(binary).start()
        config = simulator_config(folder, speed=1.5, lengths={"*": LengthSpec(mean=MEAN, sigma=0.6)})
        self.simulator = MortalSimulator(Simulator(folder, config), config)
        self.to_redis = TcpProxy(f"{self.redis.folder}/redis.sock")
        self.to_sglang = TcpProxy(self.simulator.url.removeprefix("http://"))
        self.caps = {"A1": self.cap(), "B2": self.cap()}
        self.made: list[str] = []
        self.write(seed)

    def cap(self) -> int | None:
        """None is no cap; the whole of a dataset is about 5,400 tokens."""
        return self.draw.choice([None, None, self.draw.randrange(1000, 5000)])

    def write(self, seed: int) -> None:
        job = self.job
        job.environment["TOKENMILL_REDIS_URL"] = self.redis.url
        job.tables["run"] = {"name": f"soak-{seed}", "admission": ("forecast", "strict", "drain")[seed % 3]}
        if seed % 2:  # texts stay behind wherever a result waits
            job.tables["run"]["max_waiting_results"] = FEW_RESULTS
        job.tables["sampling"]["max_new_tokens"] = MOST
        job.tables["sglang"] = {"servers": [f"http://{self.to_sglang.address}"], "concurrency": SLOTS, "answer_s": 4}
        job.tables["timing"] = dict(SHORT_LEASES)
        for name, cap in self.caps.items():
            job.dataset(name, prompts(name, COUNT), max_tokens="none" if cap is None else cap)
        job.write()

    def run(self) -> float:
        """Make trouble, heal it, and run to the end; the seconds until the files grew again."""
        trouble = Trouble(self.draw, self.job, self.redis, self.simulator, self.to_redis, self.to_sglang, self.caps)
        self.made = trouble.made
        trouble.start()
        wait_for("the first answers", lambda: self.job.count() >= 5)
        end = time.monotonic() + CHAOS_S
        while time.monotonic() < end or len(self.made) < FEWEST:
            trouble.make()
            trouble.wait(self.draw.uniform(0.1, 0.9))
        trouble.heal()
        before, healed = self.job.count(), time.monotonic()
        last = self.job.start("run", "--wait", "20")
        wait_for("the run to go on", lambda: self.job.count() > before or not last.is_running)
        recovered = time.monotonic() - healed if self.job.count() > before else 0.0
        assert last.ended() == 0, last.text[-3000:]
        self.judge(trouble)
        return recovered

    def judge(self, trouble: Trouble) -> None:
        """Nothing lost, nothing twice, nothing over, and nothing of the product itself failed."""
        self.job.check()
        ends = {dataset["name"]: dataset for dataset in self.job.status()["datasets"]}
        for name in self.job.names:
            answered, rejected = (
                {job_id(name, line["id"]) for line in lines}
                for lines in (self.job.lines(name), self.job.rejected(name))
            )
            dropped = {line["job"] for line in self.job.dropped(name)}
            assert not rejected & answered and not dropped & (answered | rejected), f"{name}: an id ended twice"
            if ends[name]["reason"] == "prompts":
                assert len(answered | rejected | dropped) == COUNT, f"{name}: {COUNT} prompts, not all of them ended"
            known = (ends[name][part] for part in ("committed", "rejected", "dropped", "unsent"))
            assert ends[name]["inputs"] == sum(known) == COUNT, f"{name}: {ends[name]}"
            tokens, highest = self.job.tokens(name), trouble.highest[name]
            assert self.redis.spent(name) == tokens, f"{name}: the counter is {self.redis.spent(name)}, files {tokens}"
            assert int(self.redis.client.hget(f"budget:{name}", "reserved") or 0) == 0
            if highest is not None:
                slack = {"strict": 0, "forecast": SLOTS * MOST, "drain": 8 * SLOTS * MOST}
                assert tokens <= highest + slack[self.job.tables["run"]["admission"]], f"{name}: {tokens} of {highest}"
            for line in self.job.lines(name):
                assert line["text"] == TEXTS.decode(line["output_ids"]), f"{name}: the text of {line['id']}"
            assert not (self.job.output / name / "quarantine.jsonl").exists(), f"{name}: a result is damaged"
            reasons = [line["reason"] for line in self.job.rejected(name)]
            assert "poison" not in reasons, f"{name}: an innocent prompt was rejected"
        for part in self.job.started:
            assert "Traceback" not in part.text and "a fault in Tokenmill itself" not in part.text, part.text[-3000:]
        if self.draw.random() < 0.25:
            before = self.job.files()
            again = self.job.call("run")
            assert again.code == 0 and self.job.files() == before, "a finished run was not left alone"

    def close(self) -> None:
        self.job.end_all()
        for wire in (self.to_redis, self.to_sglang):
            wire.close()
        self.simulator.stop()
        self.redis.remove()


def soak(seed: int) -> Seed:
    """Run one seed."""
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix=f"tm-soak-{seed}-", dir="/tmp"))
    one = Soak(seed, folder)
    recovered, problem = 0.0, ""
    try:
        recovered = one.run()
    except Exception:  # whatever it is, this seed's folder is kept and the next seed runs
        problem = f"see {folder}\n{traceback.format_exc()}"
    finally:
        one.close()
    cost = account(one.job)
    if not problem:
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)
    return Seed(seed, one.made, cost.generated, cost.committed, recovered, time.monotonic() - began, problem)


def _stop(_signal: int, _frame: object) -> None:
    sys.exit(3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seeds", nargs="*", type=int, help="run these seeds")
    parser.add_argument("--new", type=int, default=0, help="run so many new seeds")
    options = parser.parse_args()
    fresh = [random.SystemRandom().randrange(NEWEST) for _ in range(options.new)]
    # Told to stop, it ends what it has started.
    signal.signal(signal.SIGTERM, _stop)
    done: list[Seed] = []
    for seed in [*options.seeds, *fresh]:
        done.append(soak(seed))
        print(done[-1], flush=True)
    failed = [one.seed for one in done if one.problem]
    generated, committed = sum(one.generated for one in done), sum(one.committed for one in done)
    print(
        f"{len(done)} seeds, {sum(len(one.faults) for one in done)} faults, {len(failed)} failed {failed or ''}; "
        f"generated/committed {generated:,}/{committed:,} = {generated / max(1, committed):.3f}; "
        f"slowest to go on {max((one.recovered_s for one in done), default=0):.1f} s"
    )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

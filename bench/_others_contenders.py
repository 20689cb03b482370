"""What every contender is: something that is given prompts and a server, runs, and can be killed and started again."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import _others_processes as processes  # pyright: ignore[reportMissingImports]
import msgspec
from _others_server import MOST_TOKENS, TOKENIZER, Prompt  # pyright: ignore[reportMissingImports]

HERE = Path(__file__).resolve().parent
LAST_WORDS = 600


class Failed(Exception):
    """It ended with an error; the sentence holds its last words."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One run: where, what, how many at once, and where to stop. No budget and no samples: all prompts."""

    folder: Path
    url: str
    prompts: list[Prompt]
    in_flight: int
    budget: int | None = None
    samples: int | None = None


class Contender:
    """Runs a command until it ends. What differs between tools is in `prepare`, `command` and `id_of`."""

    name = ""
    version = ""
    # What it is told where the others are told how many samples: few tools know tokens.
    knows_tokens = False
    # Whether it is also killed and started again.
    is_killed = True

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        self._log = Path(os.devnull)

    def slots(self, in_flight: int) -> int:
        """How many requests it can have in flight."""
        return in_flight

    def prepare(self, task: Task) -> None:
        """Write the prompts as it wants them."""
        raise NotImplementedError

    def command(self, task: Task, *, again: bool) -> list[str]:
        raise NotImplementedError

    def output(self, task: Task) -> Path:
        return task.folder / "out.jsonl"

    def id_of(self, row: Any) -> str:
        """Which prompt a line of the output answers."""
        return row["id"]

    def start(self, task: Task, *, again: bool = False) -> None:
        if not again:
            self.prepare(task)
        self._log = task.folder / "said.log"
        self.spawn(task, self.command(task, again=again))

    def spawn(self, task: Task, command: list[str]) -> None:
        """Run it in the task's folder, without the network: datasets would ask the hub first."""
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        environment.pop("TOKENMILL_REDIS_URL", None)
        environment["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), str(HERE)])
        with self._log.open("ab") as log:
            self._processes.append(
                subprocess.Popen(command, cwd=task.folder, env=environment, stdout=log, stderr=subprocess.STDOUT)
            )

    def pids(self) -> list[int]:
        return [process.pid for process in list(self._processes) if process.poll() is None]

    def is_over(self) -> bool:
        """Whether it has ended.

        Raises:
            Failed: it has, but not well.
        """
        codes = [process.poll() for process in self._processes]
        if any(codes):
            words = self._log.read_text(errors="replace").strip()[-LAST_WORDS:]
            raise Failed(f"exit code {next(filter(None, codes))}: {words}")
        return None not in codes

    def kill(self) -> None:
        """SIGKILL to all of it at once."""
        for pid in processes.family(Contender.pids(self)):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for process in self._processes:
            process.wait()
        self._processes.clear()

    def leave(self) -> None:
        """End what stays when the work is done."""
        for process in self._processes:
            process.wait()
        self._processes.clear()

    def clean_up(self) -> int:
        """What it finds of its own accord, long after a crash; how many prompts."""
        return 0

    def close(self) -> None:
        self.kill()

    def answers(self, task: Task) -> Counter[str]:
        """How often each prompt is answered in the output; torn lines are no answers."""
        found: Counter[str] = Counter()
        path = self.output(task)
        if not path.exists():
            return found
        for line in path.read_bytes().splitlines():
            try:
                found[self.id_of(json.loads(line))] += 1
            except (ValueError, KeyError, TypeError):
                continue
        return found


def write_rows(path: Path, rows: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


class Plain(Contender):
    """bench/_others_plain.py with one of its two libraries."""

    def __init__(self, library: str) -> None:
        super().__init__()
        self._library = library
        self.name = f"asyncio script, {library}"
        self.version = f"{library} {__import__(library).__version__}"

    def prepare(self, task: Task) -> None:
        write_rows(task.folder / "in.jsonl", ({"id": one.id, "messages": one.messages} for one in task.prompts))

    def command(self, task: Task, *, again: bool) -> list[str]:
        samples = [] if task.samples is None else [str(task.samples)]
        script = str(HERE / "_others_plain.py")
        return [sys.executable, script, self._library, task.url, "in.jsonl", "out.jsonl", str(task.in_flight),
                str(MOST_TOKENS), *samples]  # fmt: skip


class Foreign(Contender):
    """A script of another project, brought by whoever runs the benchmark."""

    def __init__(self, script: Path, python: str) -> None:
        super().__init__()
        self.script = script.resolve()
        self.python = python
        self.version = f"script sha256 {hashlib.sha256(self.script.read_bytes()).hexdigest()[:12]}"


class SpecForge(Foreign):
    """scripts/regenerate_train_data.py, as its examples call it."""

    name = "SpecForge"

    def prepare(self, task: Task) -> None:
        write_rows(task.folder / "in.jsonl", ({"id": one.id, "conversations": one.messages} for one in task.prompts))

    def command(self, task: Task, *, again: bool) -> list[str]:
        samples = [] if task.samples is None else ["--num-samples", str(task.samples)]
        return [self.python, str(self.script), "--model", "simulated", "--concurrency", str(task.in_flight),
                "--max-tokens", str(MOST_TOKENS), "--server-address", task.url.removeprefix("http://"),
                "--input-file-path", "in.jsonl", "--output-file-path", "out.jsonl", "--resume", *samples]  # fmt: skip


class Speculators(Foreign):
    """scripts/response_regeneration/script.py. It knows datasets of the hub only: one of them is a folder here."""

    name = "speculators"

    def prepare(self, task: Task) -> None:
        rows = ({"id": one.id, "conversations": one.messages} for one in task.prompts)
        write_rows(task.folder / "Aeala" / "ShareGPT_Vicuna_unfiltered" / "train.jsonl", rows)

    def command(self, task: Task, *, again: bool) -> list[str]:
        samples = [] if task.samples is None else ["--limit", str(task.samples)]
        return [self.python, str(self.script), "--endpoint", f"{task.url}/v1/chat/completions", "--model",
                str(TOKENIZER), "--dataset", "sharegpt", "--concurrency", str(task.in_flight), "--max-tokens",
                str(MOST_TOKENS), "--outfile", "out.jsonl", "--resume", *samples]  # fmt: skip

    def id_of(self, row: Any) -> str:
        return row["primary_id"]


RUN = """
[run]
name = "others"
output = "out"
max_tokens_per_dataset = {budget}
[model]
tokenizer = "{tokenizer}"
[sglang]
servers = ["{url}"]
concurrency = {in_flight}
[sampling]
max_new_tokens = {most}
[[dataset]]
name = "D0"
prompts = "in.jsonl"
{samples}
"""


class Tokenmill(Plain):
    """`tokenmill run`: a Redis, a collector, a producer and a worker process."""

    name = "tokenmill run"

    def __init__(self, *, knows_tokens: bool) -> None:
        Contender.__init__(self)
        self.knows_tokens = knows_tokens
        # Without a budget, as in that run, both are the same.
        self.is_killed = knows_tokens
        self.name = "tokenmill run" if knows_tokens else "tokenmill run, a cap in answers"
        self.version = "this checkout"

    def prepare(self, task: Task) -> None:
        super().prepare(task)
        text = RUN.format(
            budget='"none"' if task.budget is None else task.budget,
            tokenizer=TOKENIZER,
            url=task.url,
            in_flight=task.in_flight,
            most=MOST_TOKENS,
            samples="" if task.samples is None else f"max_samples = {task.samples}",
        )
        (task.folder / "run.toml").write_text(text)

    def command(self, task: Task, *, again: bool) -> list[str]:
        return [sys.executable, "-m", "tokenmill", "run", "run.toml", "--json"]

    def output(self, task: Task) -> Path:
        return task.folder / "out" / "D0" / "raw_responses.jsonl"

"""The one server that all contenders meet, and what it says of them: its log has a line for each event."""

import json
import urllib.request
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from workers.chat import ChatTokenizer
from workers.simulator.answers import digest, plan_answer
from workers.simulator.config import SimulatorConfig
from workers.simulator.lengths import LengthSpec
from workers.simulator.process import SimulatorProcess
from workers.simulator.sampling import Sampling
from workers.simulator.vocabulary import load_vocabulary

TOKENIZER = Path(__file__).resolve().parent.parent / "examples" / "tokenizer"
# 1,400 tokens and their text are about 17 KB of JSON.
TOKENS = 1400
MOST_TOKENS = 4096
_DONE = ("finished", "aborted", "failed")


class Event(msgspec.Struct, frozen=True):
    """A line of the server's log."""

    event: str
    at: float
    tokens: int = 0


class Prompt(msgspec.Struct, frozen=True):
    """What is asked, and how long the server's answer to it is, whoever asks."""

    id: str
    text: str
    tokens: int

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": self.text}]


def configuration(slots: int, seconds: float) -> SimulatorConfig:
    """A server of so many slots whose answers take `seconds`, a half more or less so that they end at all times."""
    return SimulatorConfig(
        tokenizer=str(TOKENIZER),
        max_running_requests=slots,
        step_s_base=seconds / TOKENS,
        step_s_per_request=0.0,
        lengths={"*": LengthSpec(shape="uniform", mean=TOKENS, sigma=0.5)},
    )


def prompts(count: int) -> list[Prompt]:
    """Prompts of a hundred words. Their answers' lengths are known here, since not every tool writes them down."""
    config = configuration(1, 1.0)
    vocabulary = load_vocabulary(config.tokenizer, vocab_size=config.vocab_size, eos_id=config.eos_id)
    chat = ChatTokenizer.load(str(TOKENIZER))
    sampling = Sampling(max_new_tokens=MOST_TOKENS)
    made: list[Prompt] = []
    for number in range(count):
        text = f"Question {number}: " + "what does the build machine say of the disk, and why? " * 9
        ids = chat.render([{"role": "user", "content": text}])
        length = plan_answer(digest(ids), len(ids), sampling, "", 0, config, vocabulary).length
        made.append(Prompt(f"q{number}", text, length))
    return made


class Server:
    """A running server; what its log held before the contender came is not looked at."""

    def __init__(self, url: str, log: Path) -> None:
        self.url = url
        self._log = log
        self._offset = log.stat().st_size
        self._events: list[Event] = []
        self._counts: Counter[str] = Counter()

    def events(self) -> list[Event]:
        """All events so far; a line is whole as soon as it is there, being written by one call."""
        with self._log.open("rb") as file:
            file.seek(self._offset)
            new = file.read()
        self._offset += len(new)
        events = [msgspec.json.decode(line, type=Event) for line in new.splitlines()]
        self._events += events
        self._counts.update(event.event for event in events)
        return self._events

    @property
    def answered(self) -> int:
        self.events()
        return self._counts["finished"]

    def has_begun(self) -> bool:
        return self._offset < self._log.stat().st_size or bool(self._events)

    def is_idle(self) -> bool:
        self.events()
        return self._counts["received"] == sum(self._counts[name] for name in _DONE)

    def tokens(self) -> int:
        """Tokens that were made, those of aborted answers included."""
        return sum(event.tokens for event in self.events())

    def makespan_s(self) -> float:
        """From the first request to the last answer."""
        events = self.events()
        return max(event.at for event in events if event.event == "finished") - events[0].at

    def busy(self, slots: int) -> float:
        """The mean share of the slots in use from the first request to the last one: how full the client kept it."""
        events = self.events()
        last = max(event.at for event in events if event.event == "received")
        running, area, before = 0, 0.0, events[0].at
        for event in events:
            if event.at > last:
                break
            area += running * (event.at - before)
            before = event.at
            running += 1 if event.event == "received" else -1
        return area / (slots * (last - events[0].at)) if last > events[0].at else 0.0


@contextmanager
def a_server(folder: Path, slots: int, seconds: float) -> Generator[Server]:
    """A server of its own, which has already loaded its tokenizer: that happens with the first request."""
    log = folder / "server.jsonl"
    config = msgspec.structs.replace(configuration(slots, seconds), log_path=str(log))
    process = SimulatorProcess.start(config)
    try:
        body: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
        request = urllib.request.Request(
            f"{process.url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        urllib.request.urlopen(request, timeout=60).close()
        yield Server(process.url, log)
    finally:
        process.stop(grace_s=0)

"""The two runs of a contender: one left in peace until it has what was wanted, one killed at half and started again."""

import time
from collections.abc import Callable
from pathlib import Path

import _others_processes as processes  # pyright: ignore[reportMissingImports]
import msgspec
from _others_contenders import Contender, Task  # pyright: ignore[reportMissingImports]
from _others_server import TOKENS, Prompt, Server, a_server  # pyright: ignore[reportMissingImports]

POLL_S = 0.05
IDLE_S = 30.0


class DidNotFinish(Exception):
    """It was ended at the limit."""


class Load(msgspec.Struct, frozen=True):
    """What is asked of a contender. `requests` is a number for each slot, so that all run equally long."""

    in_flight: int
    per_slot: int
    seconds: float
    limit_s: float


class Through(msgspec.Struct, frozen=True):
    """What a run cost."""

    slots: int
    answers: int
    makespan: float
    start_s: float
    wall_s: float
    busy: float
    cpu_ms: float
    start_cpu_s: float
    peak_mb: float
    over: float


class Killed(msgspec.Struct, frozen=True):
    """What a kill cost: prompts without an answer, with more than one, and tokens that no answer in the output has.

    `lost_at_first` is before what the tool does long after a crash.
    """

    lost_at_first: int
    lost: int
    repeated: int
    again: float


def _await(contender: Contender, server: Server, deadline: float, wanted: int, enough: Callable[[], bool]) -> None:
    """Until it is over, or enough for the moment.

    Raises:
        DidNotFinish: the limit came first.
        Failed: it ended with an error.
    """
    while not enough() and not contender.is_over():
        if time.monotonic() > deadline:
            raise DidNotFinish(f"{server.answered:,} of {wanted:,} answers")
        time.sleep(POLL_S)


def through(contender: Contender, load: Load, prompts: list[Prompt], folder: Path) -> Through:
    """Until it has made so many answers, or so many tokens, of half as many prompts again.

    The samples are as many as make the budget at the mean of all prompts, which only a benchmark can know beforehand.
    """
    slots = contender.slots(load.in_flight)
    wanted = slots * load.per_slot
    offered = prompts[: wanted * 3 // 2]
    budget = round(wanted * sum(one.tokens for one in offered) / len(offered))
    told = {"budget": budget} if contender.knows_tokens else {"samples": wanted}
    with a_server(folder, load.in_flight, load.seconds) as server:
        task = Task(folder=folder, url=server.url, prompts=offered, in_flight=load.in_flight, **told)
        buried, began = processes.buried_cpu_s(), time.time()
        watch = processes.Watch(contender.pids, server.has_begun)
        try:
            watch.start()
            contender.start(task)
            _await(contender, server, time.monotonic() + load.limit_s, wanted, lambda: False)
            wall_s = time.time() - began
            cpu_s = processes.cpu_s(processes.family(contender.pids())) + processes.buried_cpu_s() - buried
            contender.leave()
        finally:
            watch.stop()
            contender.kill()
        made, before_s = server.answered, watch.cpu_before_s or 0.0
        return Through(
            slots=slots,
            answers=made,
            makespan=server.makespan_s() * load.in_flight * TOKENS / load.seconds / budget,
            start_s=server.events()[0].at - began,
            wall_s=wall_s,
            busy=server.busy(load.in_flight),
            cpu_ms=(cpu_s - before_s) * 1000 / made,
            start_cpu_s=before_s,
            peak_mb=watch.peak_mb,
            over=server.tokens() / budget - 1,
        )


def killed(contender: Contender, load: Load, prompts: list[Prompt], folder: Path) -> Killed:
    """All prompts; SIGKILL to all its processes when half are answered, and the same command again."""
    wanted = contender.slots(load.in_flight) * load.per_slot
    offered = prompts[:wanted]
    with a_server(folder, load.in_flight, load.seconds) as server:
        task = Task(folder=folder, url=server.url, prompts=offered, in_flight=load.in_flight)
        deadline = time.monotonic() + 2 * load.limit_s
        try:
            contender.start(task)
            _await(contender, server, deadline, wanted, lambda: server.answered * 2 >= wanted)
            contender.kill()
            contender.start(task, again=True)
            _await(contender, server, deadline, wanted, lambda: False)
            at_first = len(offered) - len(contender.answers(task))
            if contender.clean_up():
                _await(contender, server, deadline, wanted, lambda: False)
            contender.leave()
        finally:
            contender.kill()
        idle_by = time.monotonic() + IDLE_S
        while not server.is_idle() and time.monotonic() < idle_by:
            time.sleep(POLL_S)
        answers = contender.answers(task)
        kept = sum(one.tokens for one in offered if one.id in answers)
        return Killed(
            lost_at_first=at_first,
            lost=len(offered) - len(answers),
            repeated=sum(count > 1 for count in answers.values()),
            again=server.tokens() / kept - 1,
        )

"""What people see of a run: numbers, times, and tables that fit a terminal of 80 columns."""

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from results.report import DatasetCounts, Report
from tokenmill import screen, view
from tokenmill.state import DatasetStatus, ServerStatus, Status, Trouble, WorkerStatus
from tokenmill.status import overshoot


def dataset(name: str = "A1", **changes: Any) -> DatasetStatus:
    fields: dict[str, Any] = {
        "name": name, "cap": 10_000_000, "spent": 9_999_999, "reserved": 1_234_567, "remaining": -1_234_566,
        "forecast": 11_234_566, "overshoot": 0.0, "complete": False, "reason": None, "inputs": 123_456,
        "unsent": 100_000, "queued": 12_345, "leased": 1_024, "committed": 7_000, "dropped": 100_000, "rejected": 4_321,
        "truncated": 7, "tokens_per_s": 123_456.7, "eta_s": 359_999.0,
    }  # fmt: skip
    return DatasetStatus(**{**fields, **changes})


def status(*datasets: DatasetStatus, **changes: Any) -> Status:
    fields: dict[str, Any] = {
        "run": "kimi", "state": "running", "redis": "redis://:***@host/0", "sglang": "real", "datasets": list(datasets),
        "workers": [WorkerStatus(name="w", host="h", in_flight=64, server="http://gpu0:30000", state="busy")],
        "servers": [
            ServerStatus(url="http://gpu0:30000", state="up", running=64, waiting=3, tokens_per_s=2500.0),
            ServerStatus(url="http://gpu1:30000", state="down", running=0, waiting=0, tokens_per_s=0, reason="refused"),
        ],
        "generated_tokens": 1, "wasted_tokens": 0,
    }  # fmt: skip
    return Status(**{**fields, **changes})


def printed(what: Any, *, width: int = 80, terminal: bool = False) -> str:
    output = io.StringIO()
    Console(file=output, width=width, force_terminal=terminal).print(what)
    return output.getvalue()


def drawn(shown: Status, *, width: int = 80, height: int = 40, terminal: bool = False, **options: Any) -> str:
    output = io.StringIO()
    console = Console(file=output, width=width, height=height, force_terminal=terminal)
    console.print(screen.live(shown, console, **options))
    return output.getvalue()


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (None, "none"), (0, "0"), (950, "950"), (9_999, "9999"), (10_000, "10.0K"), (12_345, "12.3K"),
        (999_949, "999.9K"), (999_950, "1.0M"), (1_000_000, "1.0M"), (10_000_000, "10.0M"), (999_950_000, "1.0G"),
        (2_500_000_000, "2.5G"), (-1_234_567, "-1.2M"),
    ],
)  # fmt: skip
def test_tokens_are_short(number: int | None, shown: str) -> None:
    assert view.tokens(number) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "-"), (0, "0s"), (59.9, "59s"), (60, "1m00s"), (3_599, "59m59s"), (3_600, "1h00m"), (359_999, "99h59m")],
)
def test_times_are_short(seconds: float | None, shown: str) -> None:
    assert view.duration(seconds) == shown


def test_overshoot_is_a_share_of_the_cap_and_never_negative() -> None:
    assert overshoot(1_100, 1_000) == pytest.approx(0.1)
    assert overshoot(900, 1_000) == 0
    assert overshoot(900, None) is None
    assert overshoot(0, 0) is None


DOWN = Trouble(level="error", about="servers", what="server http://gpu1:30000 is down: refused", mend="start it again")
NO_WORKER = Trouble(level="error", about="workers", what="no worker is running", mend="start one")


@pytest.mark.parametrize("width", [80, 109, 110, 200])
def test_the_live_table_fits_the_terminal_and_keeps_every_number(width: int) -> None:
    rows = [dataset("B2_opencodeinstruct_with_a_long_name"), dataset("C", reason="budget"), dataset("D", cap=None)]
    text = drawn(status(*rows, troubles=[DOWN]), width=width)
    assert max(len(line) for line in text.splitlines()) <= width
    first = next(line for line in text.splitlines() if line.startswith("B2_"))
    for shown in ("10.0M", "11.2M", "123.5K", "1024", "12345", "99h59m"):
        assert shown in first
    assert ("…" in first) == (width in (80, 110)), "the name is shortened, not the numbers"
    assert "complete" in text and "no cap" in text
    assert "workers: 1, 64 requests in flight" in text
    assert "! server http://gpu1:30000 is down: refused -> start it again" in text.replace("\n", " ")


def test_shares_of_truncated_and_rejected_are_shown_where_they_are_not_zero() -> None:
    rows = [
        dataset("A", truncated=700, rejected=0),
        dataset("B", truncated=0, rejected=7),
        dataset("C", truncated=0, rejected=0),
    ]
    narrow = drawn(status(*rows), width=80)
    assert "truncated: A 10 %" in narrow and "rejected: B <0.01 %" in narrow
    assert "7 prompts rejected: see rejected.jsonl" in narrow
    wide = drawn(status(*rows), width=200)
    assert "truncated: A" not in wide
    assert "10 %" in next(line for line in wide.splitlines() if line.startswith("A "))
    quiet = drawn(status(rows[2]), width=80)
    assert "truncated" not in quiet and "rejected" not in quiet


def test_what_does_not_fit_is_counted_and_what_goes_on_is_shown_first() -> None:
    rows = [dataset(f"S{n}", reason="budget", complete=True) for n in range(40)] + [dataset("T1"), dataset("T2")]
    text = drawn(status(*rows), height=24)
    assert len(text.splitlines()) <= 23
    assert "T1" in text and "T2" in text and "S0" in text
    assert re.search(r"and (\d+) datasets more, \1 of them complete", text)
    assert len(drawn(status(*rows), height=24, fitted=False).splitlines()) > 40


def test_a_run_does_not_complain_of_the_parts_that_it_starts_itself() -> None:
    shown = status(dataset(), troubles=[NO_WORKER, DOWN])
    assert "no worker is running" in drawn(shown)
    assert "no worker is running" not in drawn(shown, own_parts=True)
    assert "is down" in drawn(shown, own_parts=True)


def test_while_redis_is_away_the_last_state_stays_with_the_news() -> None:
    text = drawn(status(dataset()), news="Redis does not answer (refused)")
    assert "! Redis does not answer (refused) -> waiting" in text and "A1" in text


def test_many_servers_and_hosts_are_summed_up() -> None:
    servers = [
        ServerStatus(url=f"http://gpu{n}:1", state="up", running=10, waiting=1, tokens_per_s=100) for n in range(20)
    ]
    workers = [
        WorkerStatus(name=f"w{n}", host=f"h{n % 6}", in_flight=3, slots=4, server="", state="busy") for n in range(12)
    ]
    text = drawn(status(dataset(), servers=servers, workers=workers))
    assert "servers: 20 up, 200 running, 20 waiting, 2000 tok/s" in text
    assert "workers: 12, 36 of 48 slots in flight (2 on h0, 2 on h1, 2 on h2, 2 on h3 and 2" in text


def test_a_terminal_without_unicode_gets_plain_bars() -> None:
    output = io.TextIOWrapper(io.BytesIO(), encoding="latin-1", write_through=True)
    console = Console(file=output, width=80, height=40)
    console.print(screen.live(status(dataset(spent=5_000_000)), console))
    assert "###" in output.buffer.getvalue().decode("latin-1")  # pyright: ignore[reportAttributeAccessIssue]


def test_the_simulated_server_is_named_in_every_screen() -> None:
    assert "simulated SGLang" in drawn(status(dataset(), sglang="simulated"))
    assert "simulated" not in drawn(status(dataset()))


def test_no_color_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = status(dataset("A"), dataset("B", complete=True), troubles=[DOWN])
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[36m" in drawn(shown, terminal=True) and "\x1b[1;31m" in drawn(shown, terminal=True)
    monkeypatch.setenv("NO_COLOR", "1")
    coloured = [f"{number}m" for number in (31, 32, 33, 34, 35, 36)]
    assert not any(code in drawn(shown, terminal=True) for code in coloured)
    assert "\x1b" not in drawn(shown), "a log has no escape codes at all"


def test_log_lines_say_each_datasets_share() -> None:
    rows = [dataset("A", spent=5_000_000), dataset("B", reason="prompts", complete=True), dataset("C", cap=None)]
    text = view.log_lines(status(*rows))
    assert "A 50%" in text and "B no prompts left" in text and "C 10.0M" in text
    assert "1 of 3 datasets complete" in text
    capped = view.log_lines(status(dataset(cap=0, spent=0)))
    assert capped.startswith("0 of 0 tokens")


def test_the_summary_fits_80_columns() -> None:
    text = printed(view.summary(status(dataset("B2_opencodeinstruct", reason="budget", overshoot=0.0004)), 60.0, {}))
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "0.0%" in text and "budget" in text and "10.0M" in text


def test_a_verification_says_its_verdict_last() -> None:
    counts = DatasetCounts(
        name="A1", lines=2, answers=1, tokens=1500, truncated=0, foreign=0, rejected=0, dropped=0
    )  # fmt: skip
    good = view.verification(Report(findings=[], notes=["a note"], datasets=[counts]))
    assert good == [
        "A1: 1 answers of 1,500 tokens in 2 lines, 0 rejected, 0 dropped",
        "note: a note",
        "everything agrees",
    ]


def record(**changes: Any) -> str:
    line: dict[str, Any] = {
        "id": "q1", "dataset": "A1", "turn": 1, "turns": 1, "prompt_tokens": 6, "completion_tokens": 9,
        "finish_reason": "stop", "matched": "2", "input_ids": [1, 2, 3, 4, 5, 6], "output_ids": [7] * 9,
        "text": "x" * 100, "messages": [], "sampling": {}, "model": "m", "weight_version": "", "server": "",
        "worker": "", "attempt": 1, "rid": "", "latency_s": 0.1, "created_at": 1.0, "schema": 1,
    }  # fmt: skip
    return json.dumps({**line, **changes}) + "\n"


def test_a_record_is_shown_short(tmp_path: Path) -> None:
    file = tmp_path / "raw_responses.jsonl"
    file.write_text(record())
    shown = view.record(file)
    assert shown is not None and len(shown) < 400
    assert "[1, 2, 3, 4, … 6 in all]" in shown and "x" * 60 + "…" in shown


def test_what_is_no_record_of_ours_is_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "raw_responses.jsonl"
    file.write_text('[1]\nnull\n{"completion_tokens": 5, "input_ids": 3}\n{"torn": \n' + record(text="half \ud83d"))
    shown = view.record(file)
    assert shown is not None and "q1" in shown
    shown.encode()
    file.write_bytes(b"\xff\xfe\n")
    assert view.record(file) is None
    file.write_bytes(b"")
    assert view.record(file) is None

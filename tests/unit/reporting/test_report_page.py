"""report.html: right numbers, nothing of a stranger's text as markup, readable in a real browser."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from budget.errors import Exit
from results import reporting
from results.reporting import markup
from results.reporting.gather import Lengths, Timeline, bucket, edges, gather
from results.reporting.page import page
from results.summary import file_totals
from tests.unit.exports.shelf import Shelf, conversation, record
from workers.encodings import encode_line

HOSTILE = (
    "</dd></section><script>document.title='owned'</script><img src=x onerror=\"document.title='x'\">&\ud800\0\u202e"
)
NAME = "kimi <b onmouseover='1'>"


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    """A run with long and short answers, truncated ones, two servers, and hostile rejects."""
    found = Shelf(tmp_path)
    for number in range(60):
        found.put(
            "A1",
            record(
                f"p{number}",
                output_ids=[1] * (1 + number * number),
                finish_reason="length" if number > 55 else "stop",
                server=f"http://gpu{number % 2}:30000/?<script>",
                created_at=1_796_000_000.0 + number * 7,
                model=HOSTILE.encode("utf-8", "replace").decode(),
            ),
        )
    found.put("B2", *conversation("c", ["x", "y"], dataset="B2"), b'{"completion_tokens": 40}\n')
    said: dict[str, Any] = {"dataset": "B2", "reason": HOSTILE, "detail": HOSTILE, "attempts": 0, "row": {"q": HOSTILE}}
    lines = [{"id": f"{HOSTILE}{number}", **said} for number in range(5)]
    retried = {"id": f"{HOSTILE}4", "retried": True}
    found.rejected("B2").write_bytes(b"".join(map(encode_line, [*lines, retried])))
    (tmp_path / "out" / "B2" / "dropped.jsonl").write_bytes(b'{"job": "B2-0"}\n')
    return found


class Reader(HTMLParser):
    """All tags and attributes, and whether every tag that was opened was closed in its order."""

    VOID = frozenset({"meta"})

    def __init__(self, data: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(data)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


def test_its_numbers_are_those_of_the_files(shelf: Shelf) -> None:
    facts = gather(shelf.config)
    totals = file_totals(shelf.config.output, ["A1", "B2"])
    assert [dataset.tokens for dataset in facts.datasets] == [totals[name].tokens for name in ("A1", "B2")]
    first, second = facts.datasets
    assert (first.prompts, first.answers, first.truncated) == (60, 60, 4)
    assert (second.prompts, second.answers, second.beside, second.dropped) == (1, 2, 40, 1)
    assert [(rejects.count, len(rejects.examples)) for rejects in second.rejects.values()] == [(4, 3)]
    assert sum(server.tokens for server in facts.servers.values()) == first.tokens + second.tokens - 40
    assert sum(count for _, _, count in facts.timeline.rows(10)) == first.tokens + second.tokens - 40


def test_no_text_of_a_stranger_becomes_markup(shelf: Shelf) -> None:
    path = reporting.write(msgspec.structs.replace(shelf.config, name=NAME))
    data = path.read_text(encoding="utf-8")
    tags = Reader(data).tags
    assert "script" not in {tag for tag, _ in tags} and "img" not in {tag for tag, _ in tags}
    names = {name for _, attributes in tags for name in attributes}
    assert not [name for name in names if name.startswith("on")]
    assert not names & {"href", "src", "style"}
    assert "document.title=&#x27;owned&#x27;" in data
    assert not {"\0", "\u202e"} & set(data)


def test_it_loads_nothing_and_may_not(shelf: Shelf) -> None:
    data = page(gather(shelf.config))
    assert "default-src 'none'" in data
    assert not re.search(r"url\(|@import|<link|<iframe", data)


def test_every_chart_has_a_name_and_a_table_and_every_table_its_heads(shelf: Shelf) -> None:
    tags = Reader(page(gather(shelf.config))).tags
    charts = [attributes for tag, attributes in tags if tag == "svg"]
    assert charts and all(chart.get("role") == "img" and chart.get("aria-label") for chart in charts)
    assert all(attributes.get("scope") in ("row", "col") for tag, attributes in tags if tag == "th")
    count = [tag for tag, _ in tags].count
    assert count("table") == count("caption") == count("thead") >= 6


def test_a_run_without_answers_has_a_report_too(tmp_path: Path) -> None:
    facts = gather(Shelf(tmp_path).config, caps={"A1": 0, "B2": None}, simulated=True)
    data = page(facts)
    Reader(data)
    assert "There are no answers yet" in data and "No prompt was rejected" in data and "mean nothing" in data


def test_caps_are_those_of_now_where_they_are_known(shelf: Shelf) -> None:
    assert [dataset.cap for dataset in gather(shelf.config, caps={"A1": 7}).datasets] == [7, 1000]


def test_only_a_report_is_replaced(shelf: Shelf) -> None:
    answers = shelf.answers("A1")
    before = answers.read_bytes()
    with pytest.raises(reporting.ReportProblem, match="is no report") as raised:
        reporting.write(shelf.config, path=answers)
    assert raised.value.exit_code is Exit.USER
    assert answers.read_bytes() == before
    assert reporting.write(shelf.config) == reporting.write(shelf.config)


@given(st.integers(1, 2**41))
def test_every_length_has_the_bucket_that_holds_it(tokens: int) -> None:
    low, high = edges(bucket(tokens))
    assert low <= tokens <= high


def test_buckets_without_a_whole_number_are_not_shown() -> None:
    lengths = Lengths()
    for tokens in range(1, 100):
        lengths.add(tokens, is_cut=tokens > 90)
    rows = lengths.rows()
    assert [row[0] for row in rows[1:]] == [row[1] + 1 for row in rows[:-1]]
    assert (sum(whole for _, _, whole, _ in rows), sum(cut for *_, cut in rows)) == (90, 9)
    assert (lengths.quantile(0), lengths.quantile(0.5), lengths.quantile(1)) == (1, 50, 99)


@given(st.lists(st.tuples(st.floats(allow_nan=True), st.integers(1, 100))))
def test_a_timeline_is_bounded_and_loses_no_token(entries: list[tuple[float, int]]) -> None:
    timeline = Timeline()
    for when, tokens in entries:
        timeline.add(when, tokens)
    rows = timeline.rows(20)
    assert len(rows) <= 20
    assert sum(count for _, _, count in rows) == sum(tokens for when, tokens in entries if 0 < when < 1e11)


def test_a_long_run_has_few_bins() -> None:
    timeline = Timeline()
    for second in range(10_000):
        timeline.add(1_796_000_000.5 + second, 3)
    rows = timeline.rows(72)
    assert sum(count for _, _, count in rows) == 30_000 and 36 <= len(rows) <= 72
    assert {high - low for low, high, _ in rows} == {rows[0][1] - rows[0][0]}


@pytest.mark.parametrize(
    ("part", "whole", "shown"), [(0, 9, "0 %"), (1, 0, "-"), (1, 40, "2.5 %"), (1, 2, "50 %"), (1012, 1000, "101.2 %")]
)
def test_shares_are_short(part: int, whole: int, shown: str) -> None:
    assert markup.share(part, whole) == shown


FRAMES = """<!doctype html><body><script>
addEventListener("load", () => {
  document.title = JSON.stringify([...document.querySelectorAll("iframe")].map(frame => {
    const page = frame.contentDocument, root = page.documentElement
    page.querySelectorAll("details").forEach(part => part.open = true)
    const out = [...page.querySelectorAll("body *")].filter(part => !part.closest(".scroll table")
      && part.getBoundingClientRect().right > frame.clientWidth + 1)
    const small = [...page.querySelectorAll("body *")].filter(part => parseFloat(getComputedStyle(part).fontSize) < 13)
    return [root.scrollWidth <= frame.clientWidth, out.length, small.length, page.title]
  }))
})
</script>%s</body>"""


def test_in_a_browser_it_fits_every_width_and_runs_nothing(shelf: Shelf, tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium on PATH: apt-get install chromium")
    reporting.write(shelf.config, path=tmp_path / "report.html")
    widths = (320, 480, 768, 1280, 1920)
    frames = "".join(f'<iframe width="{width}" height="900" src="report.html"></iframe>' for width in widths)
    (tmp_path / "frames.html").write_text(FRAMES % frames)
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--allow-file-access-from-files",
        f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", (tmp_path / "frames.html").as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    found = re.search(r"<title>(.*?)</title>", done.stdout)
    assert found is not None, done.stderr[-2000:]
    seen = json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    assert seen == [[True, 0, 0, "r: report"]] * len(widths)

"""The dashboard's page in a browser: it follows a real run, acts on it, and stays usable whatever comes under it."""

import json
import shutil
import signal
from collections.abc import Generator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from budget import keys
from tests.dashboard_support import SERVERS, TOKEN, Dashboard, begin
from tests.e2e_support import PATIENCE_S, Job, RedisServer, prompts, wait_for
from tests.job_fixtures import StartSimulator

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
HOSTILE = "<img src=x onerror=\"document.title='caught'\"><script>document.title='caught'</script>\u202egnp.exe"

expect.set_options(timeout=PATIENCE_S * 1000)


@pytest.fixture(scope="module")
def browser() -> Generator[Browser]:
    if BROWSER is None:
        pytest.skip("no chromium on PATH: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=BROWSER, args=["--no-sandbox", "--disable-dev-shm-usage"], timeout=PATIENCE_S * 1000
        )
        yield browser
        browser.close()


class Pages:
    """Opens pages; afterwards none of them may have complained of anything but a lost connection."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self.complaints: list[str] = []

    def open(self, url: str, **options: Any) -> Page:
        page = self._browser.new_context(**options).new_page()
        page.set_default_timeout(PATIENCE_S * 1000)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        page.goto(url)
        expect(page.locator("#datasets tbody tr").first).to_be_visible()
        return page

    def close(self) -> None:
        for context in self._browser.contexts:
            context.close()


@pytest.fixture
def pages(browser: Browser) -> Generator[Pages]:
    pages = Pages(browser)
    yield pages
    pages.close()
    real = [text for text in pages.complaints if "Failed to load resource" not in text]
    assert real == []


@pytest.fixture
def running(job: Job, redis_server: RedisServer) -> Job:
    """A run in its middle, with everything that the page can show, all of it as hostile as it can be."""
    job.dataset("A1_with_a_name_that_is_as_long_as_any_dataset_may_be_called", b"", max_tokens=1000)
    job.dataset("B2", b"", max_tokens=5000)
    job.tables["sglang"]["servers"] = list(SERVERS)
    begin(redis_server.client, job.write())
    client: Any = redis_server.client
    client.hset(keys.server(SERVERS[1]), "reason", HOSTILE * 3)
    client.hset(keys.rq_worker("w1"), mapping={"hostname": HOSTILE, "state": HOSTILE})
    rejected = {"id": HOSTILE, "dataset": "B2", "reason": HOSTILE, "detail": HOSTILE, "row": {HOSTILE: "x" * 1000}}
    file = job.output / "B2" / "rejected.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(rejected) + "\n")
    return job


def spent(page: Page, row: int = 0) -> str:
    return page.locator("#datasets tbody tr").nth(row).locator("td").nth(1).inner_text()


def test_it_follows_a_run_and_changes_its_cap(
    job: Job, redis_server: RedisServer, start_simulator: StartSimulator, pages: Pages
) -> None:
    simulator = start_simulator(tokens=50, speed=20)
    job.tables["sglang"]["servers"] = [simulator.url]
    for name in ("A1", "B2"):
        job.dataset(name, prompts(name, 100), max_tokens=1000)
    job.write()
    dashboard = Dashboard(job)
    parts = [job.start("collect", "--stay"), job.start("push", "--stay"), job.start("work", "--stay")]
    page = pages.open(dashboard.url)
    expect(page.locator("#state")).to_have_text("complete")
    for row, name in enumerate(("A1", "B2")):
        wait_for("its tokens on the page", lambda row=row, name=name: spent(page, row) == f"{job.tokens(name):,}")
    expect(page.locator("#histograms h3")).to_have_text(["A1", "B2"])
    expect(page.locator("#servers-table tbody th")).to_have_text([simulator.url])
    assert page.locator("#rate canvas").is_visible()

    page.get_by_role("textbox", name="Token (").fill("wrong")
    page.get_by_label("Dataset", exact=True).select_option("B2")
    page.get_by_label("New cap").fill("2_500")
    page.get_by_role("button", name="Set the cap").click()
    expect(page.locator("#said")).to_contain_text("that is not the token")
    client: Any = redis_server.client
    assert client.hget(keys.budget("B2"), "cap") == b"1000"
    page.get_by_role("textbox", name="Token (").fill(TOKEN)
    page.get_by_label("New cap").press("Enter")
    expect(page.locator("#said")).to_have_text("B2: cap 1000 -> 2500 tokens")
    assert client.hget(keys.budget("B2"), "cap") == b"2500"
    wait_for("the tokens of the new cap", lambda: job.tokens("B2") >= 2500)
    wait_for("them on the page", lambda: spent(page, 1) == f"{job.tokens('B2'):,}")

    page.get_by_role("button", name="Pause the run").click()
    expect(page.get_by_role("button", name="Let the run go on")).to_be_visible()
    assert client.exists(keys.RQ_SUSPENDED)
    page.get_by_role("button", name="Let the run go on").click()
    expect(page.get_by_role("button", name="Pause the run")).to_be_visible()
    page.get_by_role("button", name="Drain the server").click()
    expect(page.get_by_role("button", name="Use the server again")).to_be_visible()
    expect(page.locator("#servers-table tbody td").first).to_have_text("draining")
    assert client.hget(keys.SERVERS, simulator.url) == b"drain"
    assert TOKEN not in page.url and TOKEN not in page.content()
    for part in parts:
        part.send(signal.SIGTERM)


def test_without_a_token_there_is_nothing_to_press(running: Job, pages: Pages) -> None:
    page = pages.open(Dashboard(running, token=None).url)
    expect(page.locator("#read-only")).to_contain_text("read-only")
    assert page.get_by_role("button").count() == 0


def test_redis_and_the_dashboard_restart_under_it(running: Job, redis_server: RedisServer, pages: Pages) -> None:
    dashboard = Dashboard(running)
    page = pages.open(dashboard.url)
    expect(page.locator("#banner")).to_be_hidden()
    redis_server.kill()
    expect(page.locator("#banner")).to_contain_text("Redis does not answer")
    assert spent(page) == "250", "what was known stays"
    redis_server.start()
    expect(page.locator("#banner")).to_be_hidden()
    dashboard.process.kill()
    expect(page.locator("#banner")).to_contain_text("The dashboard does not answer")
    client: Any = redis_server.client
    client.set(keys.spent(running.names[0]), 777)
    Dashboard(running, "--port", str(dashboard.port))
    expect(page.locator("#banner")).to_be_hidden()
    wait_for("the newest number", lambda: spent(page) == "777")
    page.reload()
    wait_for("the newest number after a reload", lambda: spent(page) == "777")


@pytest.mark.parametrize("width", [320, 768, 1920])
def test_no_width_makes_the_page_scroll_sideways(running: Job, pages: Pages, width: int) -> None:
    page = pages.open(Dashboard(running).url, viewport={"width": width, "height": 900})
    expect(page.locator("#rejects-list details")).to_have_count(1)
    page.evaluate("document.querySelectorAll('details').forEach((node) => { node.open = true; })")
    page.get_by_role("textbox", name="Token (").fill("x" * 300)
    wide, shown = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert wide <= shown == width


def test_hostile_text_is_text(running: Job, pages: Pages) -> None:
    page = pages.open(Dashboard(running).url)
    expect(page.locator("#rejects-list summary")).to_contain_text("<img src=x onerror=")
    expect(page.locator("#troubles")).to_contain_text("<script>")
    assert page.title() == "test: running"
    assert page.locator("main img, main script").count() == 0
    assert "\u202e" not in page.locator("body").inner_text(), "what turns letters around is made visible"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(running: Job, pages: Pages, scheme: Any) -> None:
    page = pages.open(Dashboard(running).url, color_scheme=scheme, bypass_csp=True)
    expect(page.locator("#rejects-list details")).to_have_count(1)
    page.evaluate("document.querySelectorAll('details').forEach((node) => { node.open = true; })")
    axe: Any = Axe()
    found: list[dict[str, Any]] = axe.run(page).response["violations"]
    assert [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in found] == []


def test_everything_is_reached_by_keyboard(running: Job, pages: Pages) -> None:
    page = pages.open(Dashboard(running).url)
    reached: list[str] = []
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.className"))
        if reached[-1] == "pause":
            break
    assert reached[0] == "skip"
    fields = ["token", "cap-dataset", "cap-tokens", "server", "drain", "pause"]
    assert [name for name in reached if name in fields] == fields
    assert reached.count("scroll") >= 2, "tables that scroll can be scrolled by keyboard"
    live = page.locator("[aria-live=polite]")
    assert {live.nth(n).get_attribute("id") for n in range(live.count())} == {"banner", "troubles", "said"}

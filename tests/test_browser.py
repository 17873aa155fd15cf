"""The report in a real browser: it renders, asks the network for nothing, runs nothing, and fits its window."""

import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import builders
import numpy as np
import pytest

from mikit.runs.report import report_html, write_report

CHROMIUM = Path(os.environ.get("CHROMIUM") or "/usr/bin/chromium")
BROWSERS_OWN = ("google.com", "googleapis.com", "gstatic.com")
"""Where the browser itself asks for updates; no page of ours names them, and here nothing resolves anyway."""
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--enable-logging=stderr",
    "--v=0",
]
MEASURE = "<script>document.title = [document.documentElement.scrollWidth, innerWidth, document.querySelectorAll('{}').length]</script>"
POLICY = re.compile(r"<meta http-equiv=.Content-Security-Policy.*?>")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"no Chromium at {CHROMIUM}: name one in CHROMIUM"),
]


@dataclass(frozen=True)
class Visit:
    """What a browser did with a page."""

    dom: str
    messages: list[str]
    """Of the console: script errors, and what the page's own policy stopped."""
    requests: list[str]
    """Addresses asked for over the network on the page's behalf."""


@pytest.fixture
def browse(tmp_path):
    """A function that opens a page and tells what happened."""
    runs = iter(range(100))

    def visit(page: str, *flags: str, width: int = 1200) -> Visit:
        folder = tmp_path / f"visit{next(runs)}"
        folder.mkdir()
        file, log = folder / "page.html", folder / "net.json"
        file.write_text(page, encoding="utf-8")
        command = [
            str(CHROMIUM),
            *FLAGS,
            f"--user-data-dir={folder / 'profile'}",
            f"--log-net-log={log}",
            f"--window-size={width},3000",
            *flags,
            "--dump-dom",
            file.as_uri(),
        ]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        messages = [line for line in ran.stderr.splitlines() if "CONSOLE" in line]
        return Visit(ran.stdout, messages, _requests(log))

    return visit


def _requests(log: Path) -> list[str]:
    events = json.loads(log.read_text("utf-8"))["events"]
    urls = {event["params"]["url"] for event in events if "url" in event.get("params", {})}
    hosts = {url: urlsplit(url).hostname or "" for url in urls if url.startswith(("http:", "https:", "ws:", "wss:"))}
    return sorted(url for url, host in hosts.items() if not host.endswith(BROWSERS_OWN))


@pytest.fixture(params=["explained", "unfit", "dead"])
def page(request) -> str:
    traces = {"explained": builders.trace, "unfit": builders.unfit_trace, "dead": builders.dead_trace}
    return report_html(traces[request.param]())


def test_the_page_renders_without_a_request_or_an_error(browse, page):
    visit = browse(page)
    assert "How this was made" in visit.dom
    assert visit.messages == []
    assert visit.requests == []


def test_a_page_that_did_ask_or_fail_would_be_noticed(browse):
    faulty = "<img src='http://example.invalid/x.png'><script>throw new Error('boom')</script>"
    visit = browse(f"<!doctype html><title>faulty</title>{faulty}")
    assert visit.requests == ["http://example.invalid/x.png"]
    assert "boom" in visit.messages[0]


def test_hostile_text_runs_nothing_even_without_the_policy_of_the_page(browse):
    from test_report import ATTACKS, trace_filled_with

    page = report_html(trace_filled_with("".join(ATTACKS)))
    visit = browse(
        POLICY.sub("", page).replace("</body>", MEASURE.format("img, iframe, main script, [onerror]") + "</body>")
    )
    assert visit.messages == []
    assert visit.requests == []
    assert re.search(r"<title>\d+,\d+,0</title>", visit.dom)


@pytest.mark.parametrize("width", [500, 1200])
def test_the_page_is_as_wide_as_its_window(browse, page, width):
    measured = POLICY.sub("", page).replace("</body>", MEASURE.format("main") + "</body>")
    visit = browse(measured, width=width)
    found = re.search(r"<title>(\d+),(\d+),1</title>", visit.dom)
    assert found
    assert int(found[1]) <= int(found[2])


@pytest.mark.parametrize("scheme, light", [(1, True), (0, False)])
def test_the_page_is_drawn_in_the_theme_of_its_reader(tmp_path, scheme, light):
    from matplotlib.image import imread

    page, picture = tmp_path / "report.html", tmp_path / "report.png"
    write_report(builders.trace(), page)
    command = [
        str(CHROMIUM),
        *FLAGS,
        f"--user-data-dir={tmp_path / 'profile'}",
        f"--blink-settings=preferredColorScheme={scheme}",
        "--window-size=1200,3000",
        f"--screenshot={picture}",
        page.as_uri(),
    ]
    subprocess.run(command, capture_output=True, timeout=120, check=True)
    brightness = imread(picture)[..., :3].mean(axis=-1)
    ground, written = float(np.median(brightness)), float(np.ptp(brightness))
    assert (ground > 0.9) if light else (ground < 0.2)
    assert written > 0.6


# --- the report of a sweep ---

CLICKS = """
const heads = Array.from(document.querySelectorAll("#features thead th"));
const place = (title) => heads.findIndex((head) => head.textContent === title);
const shown = () => Array.from(document.querySelectorAll("#features tbody tr")).filter((row) => !row.hidden);
const values = (title) => shown().map((row) => row.cells[place(title)].dataset.value);
const click = (title) => heads[place(title)].querySelector("button").click();
const type = (text) => { const s = document.getElementById("search"); s.value = text; s.dispatchEvent(new Event("input")); };
const found = {};
found.all = shown().length;
click("Seconds"); found.up = values("Seconds");
click("Seconds"); found.down = values("Seconds");
click("Input"); found.texts = values("Input");
type("failed"); found.failed = values("State"); found.count = document.getElementById("count").textContent;
type("nothing holds this"); found.none = shown().length;
type(""); found.again = shown().length;
document.title = JSON.stringify(found);
"""


def test_the_table_of_a_sweep_is_sorted_and_searched_and_a_strangers_text_runs_nothing(browse):
    import synthetic_sweep

    from mikit.runs.sweep_report import write_sweep_report

    folder = synthetic_sweep.make(40, failed=3)
    write_sweep_report(folder)
    page = (folder / "report.html").read_text("utf-8")
    visit = browse(page)
    assert (visit.messages, visit.requests) == ([], [])
    assert "40 of 40 features" in visit.dom, "the page's own script runs under its policy"
    driven = browse(POLICY.sub("", page).replace("</body>", f"<script>{{{CLICKS}}}</script></body>"))
    assert driven.messages == []
    found = json.loads(re.search(r"<title>(.*?)</title>", driven.dom)[1])
    up = [float(value) for value in found["up"] if value]
    assert found["all"] == found["again"] == 40 and found["none"] == 0
    assert up == sorted(up) and len(up) == 37 and found["up"][37:] == [""] * 3
    assert [float(value) for value in found["down"] if value] == up[::-1] and found["down"][37:] == [""] * 3
    texts = [value for value in found["texts"] if value]
    assert texts == sorted(texts)
    assert found["failed"] == ["failed"] * 3 and found["count"] == "3 of 40 features"

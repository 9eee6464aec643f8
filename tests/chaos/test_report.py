"""The report: one page that needs nothing else, with the verdict first; a real browser lays it out."""

import dataclasses
import re
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from chaos.checkers.operations import PROMISES
from chaos.report.distribution import distribution
from chaos.report.page import render
from ledgermq.history import Outcome
from tests.chaos.example_run import run_of
from tests.limits import WAIT_S


def test_the_page_has_verdict_bands_bars_and_checks_and_loads_nothing() -> None:
    page = render(run_of())
    assert page.index("PASS: kill-leader, mode raft") < page.index("<svg")
    assert page.count('class="band kill"') == 1
    assert [page.count(f">term {term}<") for term in (1, 2, 3)] == [1, 1, 0]
    assert page.count('<span class="yes">') == len(PROMISES) + 1
    assert "ledgermq drill kill-leader</pre>" in page
    assert not re.search(r"(src|href)=|https?://|url\(|@import", page)


def test_a_broken_promise_and_a_fault_without_effect_are_said_first() -> None:
    page = render(run_of(lose=True))
    assert page.index("not so: no acknowledged message is lost") < page.index("<svg")
    assert page.count('<span class="no">NO</span>') == 2  # it leaves a hole, too
    assert "kill had no effect" in render(run_of(trouble="kill had no effect")).split("<svg")[0]


def test_failed_sends_have_one_tick_a_pixel() -> None:
    result = run_of()
    for number in range(5000):
        at_s = 1.0 + number / 5000
        result.record.failed(result.record.invoked(at_s), at_s, Outcome.INFO)
    assert 100 < render(result).count('class="failed"') <= 1000


def test_several_faults_have_the_distribution_of_their_rtos() -> None:
    assert 'id="distribution"' not in render(run_of()), "one fault has none"
    svg = ElementTree.fromstring(distribution([40.0, 80.0, 80.0, 12_000.0]))
    [line] = svg.iter("polyline")
    points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
    assert points == sorted(points, key=lambda point: (point[0], -point[1])), "it never falls"
    steps = {x: 0.0 for x, _ in points}
    for (x, y), (next_x, next_y) in pairwise(points):
        steps[x] += (y - next_y) if x == next_x else 0.0
    assert [round(height) for height in sorted(steps.values())][-3:] == [32, 32, 65], "a quarter each, and two at once"


def test_text_from_outside_cannot_become_markup() -> None:
    assert "<script>" not in render(dataclasses.replace(run_of(), repeat="ledgermq drill '<script>'"))


def test_a_browser_shows_the_report(tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium is here: apt-get install chromium")
    (tmp_path / "report.html").write_text(render(run_of()), encoding="utf-8")
    script = (
        "document.title=[...document.querySelectorAll('svg,.band rect,#checks tbody tr')]"
        ".map(e=>Math.round(e.getBoundingClientRect().width)).join()"
    )
    page = render(run_of()).replace("</body>", f"<script>{script}</script></body>")
    (tmp_path / "measured.html").write_text(page, encoding="utf-8")
    words = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    shot = [f"--screenshot={tmp_path / 'report.png'}", "--window-size=1100,1200", "--dump-dom"]
    done = subprocess.run(
        [*words, *shot, f"file://{tmp_path}/measured.html"], capture_output=True, text=True, timeout=WAIT_S
    )
    title = re.search("<title>(.*?)</title>", done.stdout)
    assert title is not None, done.stderr
    drawing, band, *rows = map(int, title[1].split(","))
    assert drawing > 900 and 100 < band < drawing / 2  # the fault is 1 s of 4
    assert len(rows) == len(PROMISES) + 1 and min(rows) > 900

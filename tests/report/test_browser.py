"""The page in a browser: at two widths, in light and dark, for screen readers, and in print."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from wireyard.answers import open_tables
from wireyard.report import build_report

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
CAPTURE = str(Path(__file__).parents[2] / "examples" / "traffic.pcap")
WIDTHS = (1280, 390)

pytestmark = [
    pytest.mark.peer,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("report") / "report.html"
    with open_tables([CAPTURE]) as tables:
        file.write_text(build_report(tables, [CAPTURE], CAPTURE))
    return file


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_is_quiet_and_accessible(browser: Any, path: Path, width: int, scheme: str) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert (said, asked) == ([], [path.as_uri()])
    page.close()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(browser: Any, path: Path, width: int, scheme: str) -> None:
    # axe is a script, which the page's own policy would not let run.
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True
    )
    page = context.new_page()
    page.goto(path.as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    # Lists of all elements that pass would take as long as all rules.
    found = axe.Axe().run(page, options={"resultTypes": ["violations"]})
    assert found.violations_count == 0, found.generate_report()
    context.close()


def test_the_keyboard_reaches_everything(browser: Any, path: Path) -> None:
    page = browser.new_page()
    page.goto(path.as_uri())
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == "#main"
    # A summary is opened with the keyboard, as everything that can be opened is one.
    page.locator("summary").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("details").first.get_attribute("open") is not None
    page.close()


def test_print_is_pages_of_paper(browser: Any, path: Path) -> None:
    page = browser.new_page()
    page.goto(path.as_uri())
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("nav").is_visible()
    printed: bytes = page.pdf(format="A4")
    assert printed.startswith(b"%PDF")
    assert 2 <= printed.count(b"/Type /Page\n") + printed.count(b"/Type /Page ") <= 12
    page.close()


def test_the_first_screen_shows_what_is_going_on(browser: Any, path: Path) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(path.as_uri())
    assert page.locator("#now .figure").all_inner_texts() == ["4 lost", "2 stuck", "1 slow"]
    for seen in ("#now svg >> nth=0", ".findings li >> nth=3"):
        box = page.locator(seen).bounding_box()
        assert box["y"] + box["height"] < 900
    assert page.locator(".findings details[open]").count() == 0
    assert "sessions" in page.locator("#numbers dt").all_inner_texts()
    page.close()


def test_a_narrow_screen_scrolls_nowhere_to_the_side(browser: Any, path: Path) -> None:
    page = browser.new_page(viewport={"width": 400, "height": 900})
    page.goto(path.as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    wide = "[...document.querySelectorAll('*')].filter(one => one.scrollWidth > one.clientWidth"
    wide += " + 1 && getComputedStyle(one).overflowX !== 'visible').length"
    assert page.evaluate(wide) == 0
    page.close()

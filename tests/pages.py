"""A real browser for the tests of pages: Debian's Chromium, driven by playwright. Without it they skip."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlparse

import pytest

from navrl.task.evaluation import Evaluator, Flights, Scenario, straight

# SwiftShader draws WebGL without a GPU; the rest keeps Chromium from calling home.
FLAGS = [
    "--no-sandbox", "--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic",
]  # fmt: skip


class Browser:
    """Opens pages, and takes note of everything that went wrong in them."""

    def __init__(self, chromium) -> None:
        self._chromium, self._contexts = chromium, []
        self.errors: list[str] = []  # of the console, and uncaught
        self.elsewhere: list[str] = []  # requests to anywhere but this machine and this file

    def open(self, address: str | Path, width: int = 1280, height: int = 800, **options):
        """A page (of playwright) that shows `address`, a URL or a file."""
        url = Path(address).absolute().as_uri() if isinstance(address, Path) else address
        context = self._chromium.new_context(viewport={"width": width, "height": height}, **options)
        self._contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: self._note(message))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self._check(request.url))
        page.goto(url)
        return page

    def _note(self, message) -> None:
        # The last is Chromium's remark about how viser listens while something is dragged; it works.
        if message.type == "error" and "passive event listener" not in message.text:
            self.errors.append(message.text)

    def _check(self, url: str) -> None:
        parts = urlparse(url)
        if parts.scheme not in ("file", "data", "blob", "about") and parts.hostname not in ("127.0.0.1", "localhost"):
            self.elsewhere.append(url)

    def close(self) -> None:
        for context in self._contexts:
            context.close()


@pytest.fixture(scope="module")  # not longer: tests of signals and of killed processes come between
def chromium() -> Iterator:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = shutil.which("chromium")
    if not found:
        pytest.skip("no chromium here (Debian: apt-get install chromium)")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def browser(chromium) -> Iterator[Browser]:
    """At the end of a test nothing may have gone wrong, and nothing may have been asked of the network."""
    browser = Browser(chromium)
    yield browser
    browser.close()
    assert not browser.errors, browser.errors
    assert not browser.elsewhere, browser.elsewhere


@pytest.fixture(scope="session")
def flights() -> Flights:
    """Recorded flights that end at boxes, at moving obstacles and at their goals: straight lines."""
    from conftest import EVAL

    evaluator = Evaluator(EVAL.evaluation, EVAL.sim, EVAL.task)
    flown = evaluator.fly(Scenario("crossing", 200, 80), straight, episodes=48, record=True)
    assert flown is not None and flown.recording is not None
    return flown

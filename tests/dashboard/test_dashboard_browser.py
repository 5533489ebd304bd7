"""The dashboard in a real browser: by eye, by keyboard, live, without scripts, with few colours."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from chromium import Chromium
from msgspec.structs import replace
from pilot_views import HOSTILE, busy, job, reading

from hpcext.core.errors import HpcextError
from hpcext.core.values import Node, Record, Role, Segment, State
from hpcext.dashboard import chart
from hpcext.dashboard.pages import Pages
from hpcext.dashboard.server import Server, read_root
from hpcext.manager.views.reading import Reading

PREFIX = "/node/h/1"

FOCUS = """(() => {
    const at = document.activeElement, look = getComputedStyle(at);
    return [at.textContent.trim(), look.outlineStyle, parseFloat(look.outlineWidth)];
})()"""


class Stage:
    """A dashboard of one pilot that tests change."""

    def __init__(self) -> None:
        self.now = busy()
        self.server = Server(Pages(self._reads), root=read_root(PREFIX))

    def _reads(self) -> Iterator[Reading | HpcextError]:
        yield self.now

    @property
    def address(self) -> str:
        """Behind a proxy that leaves its beginning in the path."""
        return self.server.address

    @property
    def page(self) -> str:
        return f"{self.address}pilot/{self.now.pilot.id}/"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    started = Chromium(tmp_path_factory.mktemp("chromium"))
    yield started
    started.close()


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    with made.server as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield made
        server.shutdown()
        thread.join()


def place(chromium: Chromium, selector: str) -> tuple[int, int]:
    """A point in the right half of an element, where nothing is written."""
    x, y = chromium.value(
        f"(() => {{const at = document.querySelector('{selector}').getBoundingClientRect();"
        "return [at.x + scrollX + 0.85 * at.width, at.y + scrollY + at.height / 2]})()"
    )
    return round(x), round(y)


def test_what_is_seen(chromium: Chromium, stage: Stage) -> None:
    chromium.open(stage.page)
    chromium.ask(
        "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}]
    )
    picture = chromium.picture()
    # Job A is blue, D is reddish purple, nobody's lane is grey, the page is nearly white.
    assert picture.getpixel(place(chromium, ".lane svg svg.c0:last-of-type")) == (0, 114, 178)
    assert picture.getpixel(place(chromium, ".lane svg svg.c3")) == (204, 121, 167)
    assert picture.getpixel((2, 2)) == (251, 251, 252)
    chips = chromium.value("[...document.querySelectorAll('.gpus .chip')].map(e => e.innerText)")
    assert [each.split()[0] for each in chips] == ["A", "·", "·"]
    chromium.ask(
        "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}]
    )
    assert chromium.picture().getpixel((2, 2)) == (20, 23, 28)


def test_nothing_is_asked_of_others_and_nothing_goes_wrong(
    chromium: Chromium, stage: Stage
) -> None:
    chromium.open(stage.address)
    chromium.go(stage.page)
    chromium.until(lambda: chromium.value("document.getElementById('live').className") == "on")
    asked = [
        event["params"]["request"]["url"]
        for event in chromium.events
        if event["method"] == "Network.requestWillBeSent"
    ]
    assert {f"{stage.address}{name}" for name in ("style.css", "live.js")} <= set(asked)
    assert [url for url in asked if not url.startswith(stage.address)] == []
    for kind in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
        assert [event for event in chromium.events if event["method"] == kind] == []
    assert chromium.value("document.querySelectorAll('main script').length") == 0
    assert HOSTILE[:8] in chromium.value("document.body.innerText")


def test_what_changes_is_seen_and_the_reader_stays_where_he_is(
    chromium: Chromium, stage: Stage
) -> None:
    chromium.open(stage.page)
    chromium.value("document.getElementById('as-table').open = true; 0")
    chromium.value("document.querySelector('nav.choice a[href=\"?last=3600\"]').focus()")
    world = stage.now.world
    world.put(replace(world.jobs["3"], why="it is its turn"))
    world.records["1"] = replace(world.records["1"], metrics={"accuracy": 0.75})
    body = "document.body.innerText"
    chromium.until(lambda: "it is its turn" in chromium.value(body))
    assert "accuracy 0.75" in chromium.value(body)
    assert chromium.value("document.getElementById('as-table').open")
    assert chromium.value("document.activeElement.textContent") == "Last hour"
    # Held still for longer than until it would be read again, then not.
    chromium.value("document.getElementById('pause').click()")
    world.put(replace(world.jobs["3"], why="it was put off"))
    chromium.value("new Promise(done => setTimeout(done, 2500))")
    assert "put off" not in chromium.value(body)
    chromium.value("document.getElementById('pause').click()")
    chromium.until(lambda: "it was put off" in chromium.value(body))


def test_the_page_says_that_its_dashboard_is_gone(chromium: Chromium, stage: Stage) -> None:
    chromium.open(stage.page)
    stage.server.token = "another"
    chromium.until(lambda: "Not live" in chromium.value("document.body.innerText"))
    assert "job-1" in chromium.value("document.body.innerText")


def test_by_keyboard(chromium: Chromium, stage: Stage) -> None:
    chromium.open(stage.page)
    order = []
    for _ in range(9):
        chromium.key("Tab")
        words, style, width = chromium.value(FOCUS)
        order.append(words)
        assert style == "solid", words
        assert width >= 2, words
    assert order == [
        "Skip to the content", "All pilots", "All", "Last day", "Last hour", "Last 10 min",
        "The same as a table", "Pause", "data.json",
    ]  # fmt: skip
    chromium.value("document.querySelector('summary').focus()")
    chromium.key("Enter", text="\r")
    chromium.until(lambda: chromium.value("document.getElementById('as-table').open"))
    chromium.value("document.querySelector('nav a').focus()")
    chromium.key("Enter", text="\r")
    chromium.until(lambda: chromium.value("document.title") == "hpcext")


def test_without_scripts_it_loads_itself_again(chromium: Chromium, stage: Stage) -> None:
    chromium.open("about:blank")
    chromium.ask("Emulation.setScriptExecutionDisabled", value=True)
    chromium.go(stage.page)
    loads = chromium.count("Page.loadEventFired")
    chromium.until(lambda: chromium.count("Page.loadEventFired") > loads)
    chromium.ask("Emulation.setScriptExecutionDisabled", value=False)
    assert "job-1" in chromium.value("document.body.innerText")
    assert chromium.value("document.getElementById('pause').hidden")


@pytest.mark.parametrize("width", [360, 800, pytest.param(2400, marks=pytest.mark.slow)])
def test_nothing_sticks_out(chromium: Chromium, stage: Stage, width: int) -> None:
    name = "a-name-of-sixty-four-letters-" + "x" * 35
    long = replace(job("5", why="w" * 200), name=name)
    stage.now.world.put(long)
    stage.now.world.records["5"] = Record()
    chromium.open(stage.page)
    chromium.ask(
        "Emulation.setDeviceMetricsOverride",
        width=width, height=700, deviceScaleFactor=1, mobile=False,
    )  # fmt: skip
    assert chromium.value("document.documentElement.scrollWidth") == width
    if width == 360:
        # Each cell says itself what it is.
        label = "getComputedStyle(document.querySelector('td[data-label]'), '::before').content"
        assert chromium.value(label) == '"State: "'


def oklab(colour: tuple[int, int, int]) -> tuple[float, ...]:
    """Björn Ottosson, "A perceptual color space for image processing" (2020)."""
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in (each / 255 for each in colour)
    )
    long = (0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue) ** (1 / 3)
    middle = (0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue) ** (1 / 3)
    short = (0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue) ** (1 / 3)
    return (
        0.2104542553 * long + 0.7936177850 * middle - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * middle + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * middle - 0.8086757660 * short,
    )


@pytest.mark.parametrize(
    "sight",
    [
        "deuteranopia",
        "tritanopia",
        pytest.param("protanopia", marks=pytest.mark.slow),
        pytest.param("none", marks=pytest.mark.slow),
    ],
)
def test_colours_differ_for_colour_blind_readers(
    chromium: Chromium, stage: Stage, sight: str
) -> None:
    gpus = chart.COLOURS
    jobs: list[Any] = [
        (
            job(str(at), State.RUNNING, held={"n": 1}, gpus=(f"n:{at}",)),
            Record(segments=(Segment(0.0, (f"n:{at}",), Role.PRIMARY),)),
        )
        for at in range(gpus)
    ]
    stage.now = reading(*jobs, nodes=(Node("n", gpus),))
    chromium.open(stage.page)
    chromium.ask("Emulation.setEmulatedVisionDeficiency", type=sight)
    picture = chromium.picture()
    seen = [oklab(picture.getpixel(place(chromium, f".lane svg svg.c{at}"))) for at in range(gpus)]
    distances = [
        sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5
        for one, other in itertools.combinations(seen, 2)
    ]
    assert min(distances) >= 0.05

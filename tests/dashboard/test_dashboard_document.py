"""The document of the dashboard, and the pages that are made of it."""

from __future__ import annotations

import html.parser
import re
from pathlib import Path

import msgspec
import pytest
from pilot_views import HOSTILE, busy, job, reading

from hpcext.core.errors import InputError
from hpcext.core.values import Node, Record, Role, Segment, State
from hpcext.dashboard import chart, lanes, page
from hpcext.dashboard.document import Gpu, LocalGpus, document, mark, natural, pilot_view
from hpcext.dashboard.lanes import TimeWindow
from hpcext.executors.gpu_facts import GpuFacts
from hpcext.harvest import account as lease_account
from hpcext.harvest.account import Account
from hpcext.harvest.leases import Terms
from hpcext.manager.views.harvest_report import PARTS
from hpcext.render.words import clock, times

FOUND = document([busy()], 0.0)
(VIEW,) = FOUND.pilots
ALL = TimeWindow()


class Shape(html.parser.HTMLParser):
    """Tags that were opened and closed, attributes, and text."""

    VOID = frozenset({"meta", "link"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_gpus_are_those_that_were_named_and_know_who_has_them() -> None:
    first, last = VIEW.nodes
    assert (first.name, last.name) == ("n2", "n10")
    assert first.gpus == (Gpu("n2:0", "1"), Gpu("n2:1", None))
    assert last.gpus == (Gpu("n10:1", None),)
    # Nobody has said which GPUs the one that starts gets.
    assert last.unnamed == {"2": 2}
    assert (VIEW.gpus, VIEW.held) == (4, 3)


def test_gpus_of_this_machine_are_known_before_any_job_ran() -> None:
    found = reading(nodes=(Node("n2", 2),))
    own = msgspec.structs.replace(found.pilot, batch="")
    (node,) = pilot_view(msgspec.structs.replace(found, pilot=own)).nodes
    assert node.gpus == (Gpu("n2:0"), Gpu("n2:1"))


def test_stretches_say_how_they_began_and_ended() -> None:
    of_first = [span for span in VIEW.spans if span.job == "1" and span.gpu == "n2:0"]
    assert [(span.began, span.ended, span.role) for span in of_first] == [
        ("started", "suspended", "secondary"),
        ("promoted", "resized", "primary"),
        ("resized", "", "primary"),
    ]
    assert [span.ended for span in VIEW.spans if span.job == "4"] == ["completed"]


@pytest.mark.parametrize(
    ("before", "after", "began"),
    [
        (Role.PRIMARY, Role.PRIMARY, "resumed"),
        (Role.PRIMARY, Role.SECONDARY, "demoted"),
        (None, Role.PRIMARY, "resumed"),
    ],
)
def test_a_stretch_after_one_that_was_not_suspended(
    before: Role | None, after: Role, began: str
) -> None:
    record = Record(segments=(Segment(0, ("n2:0",), before, 5), Segment(9, ("n2:0",), after)))
    first, second = pilot_view(reading((job("1", State.RUNNING), record))).spans
    assert (first.ended, second.began) == ("interrupted", began)


def test_jobs_say_how_they_get_on() -> None:
    first, starting, waiting, ended = VIEW.jobs
    assert (first.mark, first.state, first.progress, first.gpus) == ("A", "running", 0.5, 1)
    assert (starting.mark, starting.gpus, waiting.mark) == ("B", 2, "C")
    assert VIEW.queue == ("3",)
    assert (ended.final, ended.progress, ended.ended_s) == (True, 1.0, 50.0)


def test_marks_and_names_count_as_people_do() -> None:
    assert [mark(place) for place in (0, 25, 26, 701, 702)] == ["A", "Z", "AA", "ZZ", "AAA"]
    assert sorted(["n10:0", "n2:10", "n2:9"], key=natural) == ["n2:9", "n2:10", "n10:0"]
    assert [times(each) for each in (0, 1, 2, 3)] == ["", "once", "twice", "3 times"]
    assert [clock(each) for each in (7, 3723, 183_600)] == ["0:07", "1:02:03", "2 d 3 h"]


def test_unreadable_pilots_are_shown_beside_the_others() -> None:
    error = InputError("belongs to uid 7", where=HOSTILE)
    found = document([busy(), error], 0.0)
    assert [view.name for view in found.pilots] == ["night"]
    assert found.unreadable == (error.as_json()["error"],)
    assert "belongs to uid 7" in Shape(page.overview(found)).text


def test_a_user_without_pilots_is_told_how_to_start_one() -> None:
    error = InputError("belongs to uid 7")
    words = [Shape(page.overview(document(found, 0.0))).text for found in ([], [error])]
    assert ["There are none yet" in each for each in words] == [True, False]


def test_a_harvester_has_its_account(tmp_path: Path) -> None:
    lease_account.save(Account(seen_s=60.0, offered_node_s=7200.0, leases=3), tmp_path)
    found = reading(harvest=Terms(partition="low"), directory=tmp_path)
    view = pilot_view(found)
    assert view.kind == "harvester"
    assert view.harvest
    assert view.harvest["unleased_node_h"] == 2.0
    shape = Shape(page.pilot(view, FOUND, ALL))
    assert "Use of the 2.00 node-hours that were idle or leased; 3 leases" in shape.text
    assert all(words in shape.text for words in PARTS.values())


@pytest.mark.parametrize(
    "text",
    [
        page.overview(FOUND),
        page.overview(document([], 0.0)),
        page.pilot(VIEW, FOUND, ALL),
        page.pilot(pilot_view(reading(nodes=())), FOUND, ALL),
    ],
    ids=["overview", "nothing", "pilot", "no node"],
)
def test_pages_are_whole_hold_no_style_and_point_nowhere_else(text: str) -> None:
    shape = Shape(text)
    for tag, attributes in shape.found:
        assert "style" not in attributes, tag
        assert not any(name.startswith("on") for name in attributes), tag
        for link in ("href", "src"):
            # Relative, or a proxy's beginning would be lost.
            assert not re.match(r"/|\w+:", attributes.get(link) or ""), attributes
    scripts = [attributes for tag, attributes in shape.found if tag == "script"]
    assert [set(each) for each in scripts] == [{"src", "defer"}]
    assert not any(tag == "style" for tag, _ in shape.found)


def test_gpus_of_this_machine_are_shown_with_the_pilots_that_run_here() -> None:
    shared = GpuFacts(0, "H200", 0.5, 4 << 30, 1 << 30, mps_clients=2)
    divided = GpuFacts(1, "H200", mig=True, instances=7)
    here = document([busy()], 0.0, LocalGpus("n2", (shared, divided), mps=True))
    elsewhere = document([busy()], 0.0, LocalGpus("other", (shared,), mps=False))
    for text in (page.overview(here), page.pilot(VIEW, here, ALL)):
        words = Shape(text).text
        assert "The MPS daemon runs here." in words
        assert "50%" in words
        assert "1.0 of 4 GiB" in words
        assert "GPU 0 is shared by 2 processes through MPS" in words
        assert "GPU 1 is in MIG mode, 7 instances" in words
    assert "GPUs of other" in Shape(page.overview(elsewhere)).text
    assert "GPUs of other" not in Shape(page.pilot(VIEW, elsewhere, ALL)).text


def test_what_comes_from_outside_is_shown_as_text() -> None:
    text = page.pilot(VIEW, FOUND, ALL)
    shape = Shape(text)
    assert "waits for <script>" in shape.text
    assert "<script>fetch" not in text
    assert "\u202e" not in text


def test_colour_is_never_the_only_sign() -> None:
    text = page.pilot(VIEW, FOUND, ALL)
    assert re.search(r'<text x="4" y="15">A▲</text>', text)
    assert re.search(r'url\(#hatch\)"/><text x="4" y="15">A</text>', text)
    (row,) = [row for row in text.split("<tr>") if ", promoted" in row]
    assert re.sub(r"<[^>]+>", "|", row).split("|")[1::2] == [
        "job-1", "n2:0, n2:1", "primary", "0:30, promoted", "1:00, resized", "",
    ]  # fmt: skip


def test_a_window_leaves_out_what_was_before_it() -> None:
    found = pilot_view(
        reading(
            (job("1", State.COMPLETED), Record(segments=(Segment(0, ("n2:0",), None, 50),))),
            (job("2", State.RUNNING), Record(segments=(Segment(60, ("n2:1",), None),))),
            now_s=5000.0,
        )
    )
    shown = {last: "".join(lanes.timeline(found, TimeWindow.asked(last))) for last in ("", "3600")}
    assert "job-1 on n2:0" in shown[""]
    assert "job-1 on n2:0" not in shown["3600"]
    assert 'width="100.000%"' in shown["3600"]
    assert TimeWindow.asked("1e9999") == TimeWindow.asked("-1") == ALL


def test_gpus_of_a_node_that_had_the_same_share_a_lane() -> None:
    four, two = tuple(f"n1:{at}" for at in range(4)), ("n2:0", "n2:2")
    found = pilot_view(
        reading(
            (job("1"), Record(segments=(Segment(0, four, None, 50),))),
            (job("2"), Record(segments=(Segment(0, two, None, 50),))),
            (job("3"), Record(segments=(Segment(0, ("n3:0",), None, 50),))),
            nodes=(Node("n1", 4), Node("n3", 1)),
        )
    )
    text = "".join(lanes.timeline(found, ALL))
    assert re.findall(r'class="gpu">(.*?)<', text) == ["n1:0-3", "n2:0,2", "n3:0"]
    assert text.count("<title>") == 3


def test_spans_that_are_not_drawn_are_counted() -> None:
    segments = tuple(Segment(2.0 * at, ("n2:0",), None, 2.0 * at + 1) for at in range(2500))
    found = pilot_view(reading((job("1"), Record(segments=segments)), now_s=5000.0))
    text = "".join(lanes.timeline(found, ALL))
    assert text.count("<title>") == lanes.MOST_SPANS
    assert "Not drawn: 500 short spans and 0 GPUs" in text
    assert f"{2500 - lanes.MOST_ROWS} older ones are in data.json" in text


def luminance(colour: str) -> float:
    """Relative luminance; WCAG 2.2, "relative luminance"."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def test_letters_and_words_stand_out() -> None:
    style = (Path(chart.__file__).parent / "static" / "style.css").read_text()
    jobs = re.findall(r"\.c\d \{ --job: (#\w{6}); --on: (#\w{6}) \}", style)
    assert len(jobs) == chart.COLOURS
    assert min(contrast(*pair) for pair in jobs) >= 4.5
    for theme in re.findall(r":root \{(.*?)\}", style, re.S):
        colours = dict(re.findall(r"--(\w+): (#\w{6})", theme))
        for name in ("ink", "muted", "link", "good", "bad"):
            for ground in ("page", "panel"):
                assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)

"""The timeline of a pilot: a lane for each GPU, a block for each span in which a job had it."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from hpcext.dashboard.chart import colour, length
from hpcext.dashboard.document import JobView, PilotView, natural
from hpcext.dashboard.timeline import Span
from hpcext.numerals import whole
from hpcext.render.markup import text
from hpcext.render.words import clock

MOST_LANES = 128
MOST_SPANS = 2000
"""The largest number of spans to draw; of more, the longest ones."""

MOST_ROWS = 300

LANE_PX = 24

_SIGNS = {"resumed": "↻", "resized": "↔", "promoted": "▲", "demoted": "▽"}
"""How a span began, if it is not the first of its job → its sign."""

_WINDOWS = {"": "All", "86400": "Last day", "3600": "Last hour", "600": "Last 10 min"}


class TimeWindow(NamedTuple):
    """The part of time that is drawn.

    Attributes
    ----------
    last_s : float or None
        The number of seconds up to now; None for all time.
    """

    last_s: float | None = None

    @classmethod
    def asked(cls, last: str) -> TimeWindow:
        """Parse the window in an address; a text that is not offered means all time."""
        return cls(float(last) if last and last in _WINDOWS else None)


def timeline(view: PilotView, window: TimeWindow, *, table: bool = True) -> list[str]:
    """Return the parts of the section: a legend, the lanes, and the same as a table.

    Parameters
    ----------
    view : PilotView
    window : TimeWindow
    table : bool
        Whether the table is wanted; one that somebody has opened closes when all is shown anew.
    """
    if not view.spans:
        return ["<p>No job has had a GPU yet.</p>"]
    begin_s = max(0.0, view.now_s - window.last_s) if window.last_s else 0.0
    scale = _Scale(begin_s, max(view.now_s, begin_s + 1.0))
    seen = [span for span in view.spans if _end_s(span, scale) >= begin_s]
    drawn = seen
    if len(seen) > MOST_SPANS:
        drawn = sorted(seen, key=lambda span: span.start_s - _end_s(span, scale))[:MOST_SPANS]
    lanes = list(_lanes(view, drawn))
    jobs = {job.id: job for job in view.jobs}
    parts = [_legend(), '<div class="lanes" aria-hidden="true">']
    for gpus, spans in lanes[:MOST_LANES]:
        inner = "".join(_block(span, jobs[span.job], scale) for span in spans)
        parts.append(
            f'<div class="lane"><span class="gpu">{text(_name(gpus))}</span>'
            f'<svg height="{LANE_PX}">{scale.grid()}{inner}</svg></div>'
        )
    parts.append(f'<div class="lane axis"><span></span><svg height="20">{scale.axis()}</svg></div>')
    parts.append("</div>")
    short, more = len(seen) - len(drawn), lanes[MOST_LANES:]
    if short or more:
        parts.append(
            f'<p class="note">Not drawn: {short} short spans and '
            f"{sum(len(gpus) for gpus, _ in more)} GPUs; hpcext dashboard --json has them all.</p>"
        )
    return [*parts, _as_table(seen, jobs)] if table else parts


def _lanes(view: PilotView, drawn: Iterable[Span]) -> Iterator[tuple[list[str], list[Span]]]:
    """Yield GPUs in order with their spans; GPUs of a node with equal spans are merged."""
    every: dict[str, list[Span]] = {gpu.name: [] for node in view.nodes for gpu in node.gpus}
    for span in drawn:
        every.setdefault(span.gpu, []).append(span)

    def alike(gpu: str) -> tuple[str, list[Span]]:
        # Only the name may differ between GPUs that are merged.
        return _host(gpu), [replace(span, gpu="") for span in every[gpu]]

    for _, group in itertools.groupby(sorted(every, key=natural), key=alike):
        gpus = list(group)
        yield gpus, every[gpus[0]]


def _name(gpus: Sequence[str]) -> str:
    """Return a name for GPUs of one node, such as ``n1:0``, ``n1:0-3`` or ``n1:0,2``."""
    indices = [gpu.rpartition(":")[2] for gpu in gpus]
    first = whole(indices[0]) or 0
    if len(gpus) > 2 and indices == [str(first + at) for at in range(len(gpus))]:
        indices = [f"{indices[0]}-{indices[-1]}"]
    return f"{_host(gpus[0])}:{','.join(indices)}"


def _host(gpu: str) -> str:
    return gpu.rpartition(":")[0]


def _end_s(span: Span, scale: _Scale) -> float:
    """Return the end of a span; the present instant if it lasts."""
    return scale.end_s if span.end_s is None else span.end_s


class _Scale(NamedTuple):
    """A scale from time, in seconds since the beginning, to positions."""

    begin_s: float
    end_s: float

    def at(self, instant_s: float) -> float:
        share = (instant_s - self.begin_s) / (self.end_s - self.begin_s)
        return min(1.0, max(0.0, share))

    def ticks(self) -> list[float]:
        """Return round instants of the window, at most nine."""
        lasts_s = self.end_s - self.begin_s
        step = next((each for each in _STEPS_S if lasts_s / each <= 8), _STEPS_S[-1])
        while lasts_s / step > 8:
            step *= 2
        first = -(-self.begin_s // step) * step
        return [first + step * index for index in range(int((self.end_s - first) // step) + 1)]

    def grid(self) -> str:
        return "".join(
            f'<line class="grid" x1="{x}" x2="{x}" y2="100%"/>'
            for x in (length(self.at(tick)) for tick in self.ticks())
        )

    def axis(self) -> str:
        labels = []
        for index, tick in enumerate(self.ticks()):
            place = self.at(tick)
            anchor = "start" if place < 0.05 else "end" if place > 0.95 else "middle"
            labels.append(
                f'<text class="tick{index % 2}" x="{length(place)}" y="14" '
                f'text-anchor="{anchor}">{clock(tick)}</text>'
            )
        return "".join(labels)


_STEPS_S = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400,
)  # fmt: skip


def _block(span: Span, job: JobView, scale: _Scale) -> str:
    """Return a span, with the colour and letter of its job, and signs of how it began and ended."""
    left = scale.at(span.start_s)
    width = scale.at(_end_s(span, scale)) - left
    look = colour(job)
    parts = [f"<title>{text(_title(span, job))}</title>"]
    parts.append(f'<rect class="{look}" width="100%" height="100%" rx="2"/>')
    if span.role == "secondary":
        parts.append('<rect width="100%" height="100%" fill="url(#hatch)"/>')
    sign = _SIGNS.get(span.began, "")
    parts.append(f'<text x="4" y="15">{text(job.mark)}{sign}</text>')
    if span.ended == "suspended":
        parts.append(_PAUSED)
    inner = "".join(parts)
    return (
        f'<svg class="{look}" x="{length(left)}" width="{length(max(width, 0.001))}" y="2" '
        f'height="{LANE_PX - 4}">{inner}</svg>'
    )


def _title(span: Span, job: JobView) -> str:
    role = f" as {span.role}" if span.role else ""
    start = f"{job.name}{role} on {span.gpu}: {span.began} at {clock(span.start_s)}"
    return f"{start}, {span.ended} at {clock(span.end_s)}" if span.end_s is not None else start


_PAUSED = "".join(
    f'<rect class="paused" x="100%" width="2" height="100%" transform="translate({left})"/>'
    for left in (-7, -3)
)


def _legend() -> str:
    signs = {
        "hatched": "secondary",
        **{sign: word for word, sign in _SIGNS.items()},
        "‖": "suspended",
    }
    return (
        '<ul class="legend">'
        + "".join(f"<li><b>{sign}</b> {word}</li>" for sign, word in signs.items())
        + "</ul>"
    )


def window_links(window: TimeWindow) -> str:
    """Return links to the same page with other parts of time."""
    asked = "" if window.last_s is None else f"{window.last_s:.0f}"
    links = []
    for last, words in _WINDOWS.items():
        here = ' aria-current="true"' if last == asked else ""
        links.append(f'<a href="{f"?last={last}" if last else "./"}"{here}>{words}</a>')
    return f'<nav class="choice" aria-label="Part of time">{"".join(links)}</nav>'


def _as_table(seen: Iterable[Span], jobs: dict[str, JobView]) -> str:
    """Return the spans as a table, newest first; those of one job on several GPUs share a row."""
    joined: dict[tuple[str, float], list[Span]] = defaultdict(list)
    for span in seen:
        joined[span.job, span.start_s].append(span)
    newest = sorted(joined.values(), key=lambda each: -each[0].start_s)
    more = len(newest) - MOST_ROWS
    rows = "".join(
        f'<tr><th scope="row">{text(jobs[first.job].name)}</th>'
        f'<td data-label="GPUs">{text(", ".join(span.gpu for span in each))}</td>'
        f'<td data-label="Role">{text(first.role)}</td>'
        f'<td data-label="From">{clock(first.start_s)}, {first.began}</td>'
        f'<td data-label="To">{_end(first)}</td></tr>'
        for each in newest[:MOST_ROWS]
        for first in each[:1]
    )
    head = "".join(f'<th scope="col">{each}</th>' for each in ("Job", "GPUs", "Role", "From", "To"))
    return (
        '<details id="as-table"><summary>The same as a table</summary>'
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        + (f'<p class="note">{more} older ones are in data.json.</p>' if more > 0 else "")
        + "</details>"
    )


def _end(span: Span) -> str:
    return "now" if span.end_s is None else f"{clock(span.end_s)}, {text(span.ended)}"

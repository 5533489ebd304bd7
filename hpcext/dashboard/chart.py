"""What is drawn: marks of jobs, bars, and the timeline of GPUs. SVG that needs no style of its own.

A job is a colour of Okabe and Ito's palette (https://jfly.uni-koeln.de/color/) and a letter; a
secondary is hatched besides: colour is never the only sign.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hpcext.dashboard.document import JobView, PilotView, natural
from hpcext.dashboard.timeline import Span
from hpcext.dashboard.words import clock
from hpcext.sim.report.markup import text

COLOURS = 7
"""Classes ``c0`` to ``c6`` of the style sheet."""

MOST_LANES = 128
MOST_SPANS = 2000
"""So much is drawn; the longest stretches where there are more."""

MOST_ROWS = 300

LANE_PX = 24

_SIGNS = {"resumed": "↻", "resized": "↔", "promoted": "▲", "demoted": "▽"}
"""How a stretch that is not a job's first began."""

_WINDOWS = {"": "All", "86400": "Last day", "3600": "Last hour", "600": "Last 10 min"}


class Window(NamedTuple):
    """The part of time that is drawn.

    Attributes
    ----------
    last_s : float or None
        So long until now; None: all.
    """

    last_s: float | None = None

    @classmethod
    def asked(cls, last: str) -> Window:
        """That of an address; whatever is none of those offered means all."""
        return cls(float(last) if last and last in _WINDOWS else None)


def colour(job: JobView) -> str:
    """The class of a job's colour."""
    return f"c{job.place % COLOURS}"


def chip(job: JobView, gpu: str = "") -> str:
    """A job's mark; with a GPU: that it has this one."""
    title = f"{gpu}: {job.name}, {job.role}" if gpu else job.name
    index = f'<span class="index">{text(_index(gpu))}</span> ' if gpu else ""
    kind = " secondary" if job.role == "secondary" else ""
    hidden = f'<span class="away"> {text(job.name)}</span>' if gpu else ""
    return (
        f'{index}<span class="chip {colour(job)}{kind}" title="{text(title)}">'
        f"{text(job.mark)}{hidden}</span>"
    )


def free(gpu: str) -> str:
    """A GPU that nobody has."""
    return (
        f'<span class="index">{text(_index(gpu))}</span> '
        f'<span class="chip none" title="{text(gpu)}: free">·<span class="away">free</span></span>'
    )


def bar(share: float, words: str) -> str:
    """How much of something is done."""
    return f'<span class="done"><progress max="1" value="{share:.4f}"></progress> {words}</span>'


def swatch(index: int) -> str:
    """The colour of a part, and its pattern."""
    return f'<svg class="swatch" aria-hidden="true">{_filled(index, "100%", "0")}</svg>'


def stack(values: Sequence[float]) -> str:
    """Parts of a whole, side by side; a table beside it has the figures."""
    whole = sum(values)
    if not whole:
        return ""
    at, drawn = 0.0, []
    for index, value in enumerate(values):
        drawn.append(_filled(index, _share(value / whole), _share(at / whole)))
        at += value
    return f'<svg class="stack" aria-hidden="true">{"".join(drawn)}</svg>'


def _filled(index: int, width: str, x: str) -> str:
    place = f'x="{x}" width="{width}" height="100%"'
    over = f'<rect {place} fill="url(#hatch)"/>' if index % 2 else ""
    return f'<rect class="c{index % COLOURS}" {place}/>{over}'


def timeline(view: PilotView, window: Window) -> list[str]:
    """The section: windows to choose from, a lane for each GPU, and all of it as a table."""
    if not view.spans:
        return ["<p>No job has had a GPU yet.</p>"]
    begin_s = max(0.0, view.now_s - window.last_s) if window.last_s else 0.0
    seen = [span for span in view.spans if (span.end_s or view.now_s) >= begin_s]
    drawn = seen
    if len(seen) > MOST_SPANS:
        drawn = sorted(seen, key=lambda span: span.start_s - (span.end_s or view.now_s))
        drawn = drawn[:MOST_SPANS]
    lanes: dict[str, list[Span]] = defaultdict(list)
    for node in view.nodes:
        for gpu in node.gpus:
            lanes[gpu.name]
    for span in drawn:
        lanes[span.gpu].append(span)
    names = sorted(lanes, key=natural)
    jobs = {job.id: job for job in view.jobs}
    scale = _Scale(begin_s, max(view.now_s, begin_s + 1.0))
    parts = [_choice(window), _legend(), _HATCH, '<div class="lanes" aria-hidden="true">']
    for name in names[:MOST_LANES]:
        inner = "".join(_block(span, jobs[span.job], scale) for span in lanes[name])
        parts.append(
            f'<div class="lane"><span class="gpu">{text(name)}</span>'
            f'<svg height="{LANE_PX}">{scale.grid()}{inner}</svg></div>'
        )
    parts.append(f'<div class="lane axis"><span></span><svg height="20">{scale.axis()}</svg></div>')
    parts.append("</div>")
    if (more := len(seen) - len(drawn)) or len(names) > MOST_LANES:
        parts.append(
            f'<p class="note">{more} short stretches and {max(0, len(names) - MOST_LANES)} GPUs '
            "are not drawn; data.json has them all.</p>"
        )
    parts.append(_as_table(seen, jobs))
    return parts


class _Scale(NamedTuple):
    """Time to places; instants are seconds since the beginning."""

    begin_s: float
    end_s: float

    def at(self, instant_s: float) -> float:
        share = (instant_s - self.begin_s) / (self.end_s - self.begin_s)
        return min(1.0, max(0.0, share))

    def ticks(self) -> list[float]:
        """Round instants, at most eight."""
        length = self.end_s - self.begin_s
        step = next((each for each in _STEPS_S if length / each <= 8), _STEPS_S[-1])
        while length / step > 8:
            step *= 2
        first = -(-self.begin_s // step) * step
        return [first + step * index for index in range(int((self.end_s - first) // step) + 1)]

    def grid(self) -> str:
        return "".join(
            f'<line class="grid" x1="{x}" x2="{x}" y2="100%"/>'
            for x in (_share(self.at(tick)) for tick in self.ticks())
        )

    def axis(self) -> str:
        labels = []
        for tick in self.ticks():
            place = self.at(tick)
            anchor = "start" if place < 0.05 else "end" if place > 0.95 else "middle"
            labels.append(
                f'<text x="{_share(place)}" y="14" text-anchor="{anchor}">{clock(tick)}</text>'
            )
        return "".join(labels)


_STEPS_S = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400,
)  # fmt: skip


def _block(span: Span, job: JobView, scale: _Scale) -> str:
    """A stretch: the job's colour and letter, a sign for how it began, and bars where suspended."""
    left = scale.at(span.start_s)
    width = scale.at(scale.end_s if span.end_s is None else span.end_s) - left
    look = colour(job)
    parts = [f"<title>{text(_told(span, job))}</title>"]
    parts.append(f'<rect class="{look}" width="100%" height="100%" rx="2"/>')
    if span.role == "secondary":
        parts.append('<rect width="100%" height="100%" fill="url(#hatch)"/>')
    sign = _SIGNS.get(span.began, "")
    parts.append(f'<text x="4" y="15">{text(job.mark)}{sign}</text>')
    if span.ended == "suspended":
        parts.append(_PAUSED)
    inner = "".join(parts)
    return (
        f'<svg class="{look}" x="{_share(left)}" width="{_share(max(width, 0.001))}" y="2" '
        f'height="{LANE_PX - 4}">{inner}</svg>'
    )


def _told(span: Span, job: JobView) -> str:
    role = f" as {span.role}" if span.role else ""
    start = f"{job.name}{role} on {span.gpu}: {span.began} at {clock(span.start_s)}"
    return f"{start}, {span.ended} at {clock(span.end_s)}" if span.end_s is not None else start


_PAUSED = "".join(
    f'<rect class="paused" x="100%" width="2" height="100%" transform="translate({left})"/>'
    for left in (-7, -3)
)

_HATCH = (
    '<svg class="patterns" aria-hidden="true"><defs><pattern id="hatch" width="6" height="6" '
    'patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect class="stripe" width="2.5" height="6"/></pattern></defs></svg>'
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


def _choice(window: Window) -> str:
    asked = "" if window.last_s is None else f"{window.last_s:.0f}"
    links = []
    for last, words in _WINDOWS.items():
        here = ' aria-current="true"' if last == asked else ""
        links.append(f'<a href="{f"?last={last}" if last else "./"}"{here}>{words}</a>')
    return f'<nav class="choice" aria-label="Part of time">{"".join(links)}</nav>'


def _as_table(seen: Iterable[Span], jobs: dict[str, JobView]) -> str:
    """The same in words, newest first, one row for all GPUs of a stretch."""
    joined: dict[tuple[str, float], list[Span]] = defaultdict(list)
    for span in seen:
        joined[span.job, span.start_s].append(span)
    newest = sorted(joined.values(), key=lambda each: -each[0].start_s)[:MOST_ROWS]
    rows = "".join(
        f'<tr><th scope="row">{text(jobs[first.job].name)}</th>'
        f'<td data-label="GPUs">{text(", ".join(span.gpu for span in each))}</td>'
        f'<td data-label="Role">{text(first.role)}</td>'
        f'<td data-label="From">{clock(first.start_s)}, {first.began}</td>'
        f'<td data-label="To">{_end(first)}</td></tr>'
        for each in newest
        for first in each[:1]
    )
    head = "".join(f'<th scope="col">{each}</th>' for each in ("Job", "GPUs", "Role", "From", "To"))
    return (
        '<details id="as-table"><summary>The same as a table</summary>'
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></details>"
    )


def _end(span: Span) -> str:
    return "now" if span.end_s is None else f"{clock(span.end_s)}, {text(span.ended)}"


def _index(gpu: str) -> str:
    return gpu.rpartition(":")[2]


def _share(share: float) -> str:
    return f"{100 * share:.3f}%"

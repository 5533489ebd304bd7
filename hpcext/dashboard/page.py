"""The pages, as HTML made from a document alone; every text from outside is escaped.

Links are relative, so that the pages work behind any proxy; colours and positions are classes and
attributes of SVG, so that the style sheet is the only style.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from hpcext import __version__, backends
from hpcext.dashboard import chart, lanes
from hpcext.dashboard.document import Document, JobView, LocalGpus, NodeView, PilotView
from hpcext.executors.gpu_facts import GpuFacts, sharing
from hpcext.manager.views.harvest_report import PARTS
from hpcext.render.markup import document, paragraph, section, text
from hpcext.render.words import clock, hours, percent, times
from hpcext.text import counted

REFRESH_S = 5
"""Seconds between two reloads of the page without JavaScript."""

MOST_PILOTS = 50
"""The largest number of pilots to show; of more, the newest ones."""

MOST_IN_EXCERPT = 50
"""The largest number of jobs in a part of another page."""

MOST_ENDED = 100
"""The largest number of ended jobs to show; ``data.json`` has all."""

_MACHINE = ("GPU", "Kind", "Used", "Memory", "Divided or shared")
_GIB = 1 << 30

_QUEUE = ("Job", "State", "Why it waits")
_JOBS = (
    "Job", "State", "Role", "GPUs", "Progress", "Metrics", "Left", "Goodput", "Suspended", "Lost",
)  # fmt: skip


def overview(found: Document) -> str:
    """Return the page of all pilots."""
    body = ["<header><h1>Pilots and harvesters</h1></header>"]
    if found.pilots:
        rows = map(_pilot_row, found.pilots)
        body.append(_table("Each with its state and the progress of its jobs.", _PILOTS, rows))
    elif not found.unreadable:
        body.append("<p>There are none yet: <code>hpcext run jobs.toml</code> starts one.</p>")
    body += [f'<p class="trouble">{text(_sentence(each))}</p>' for each in found.unreadable]
    if len(found.pilots) + len(found.unreadable) >= MOST_PILOTS:
        body.append(f'<p class="note">These are the newest {MOST_PILOTS}.</p>')
    body.append(_machine(found.machine))
    return _page("hpcext", body, found.read_at, "")


def pilot(view: PilotView, found: Document, window: lanes.TimeWindow) -> str:
    """Return the page of one pilot or harvester.

    Parameters
    ----------
    view : PilotView
    found : Document
        The document that has it.
    window : lanes.TimeWindow
        The part of time to draw.
    """
    body = [
        _head(view),
        chart.HATCH,
        section("nodes", "Nodes and GPUs", *_nodes(view)),
        _machine(found.machine, {node.name for node in view.nodes}),
        section("jobs", "Jobs", *_jobs(view)),
        section("queue", "Queue", _queue(view)),
        section(
            "timeline",
            "Who had which GPU",
            lanes.window_links(window) if view.spans else "",
            *lanes.timeline(view, window),
        ),
        _harvest(view.harvest) if view.harvest else "",
    ]
    return _page(f"{view.name} · hpcext", body, found.read_at, "../../")


def excerpt(view: PilotView, lines: Iterable[str]) -> str:
    """Return the jobs of a pilot and the timeline, as a part of a page that is not ours.

    Parameters
    ----------
    view : PilotView
    lines : iterable of str
        What else there is to say of it, as plain text.
    """
    told = [paragraph(line, "note") for line in lines]
    held = f"{view.held} of {view.gpus} GPUs held; {clock(view.now_s)} since it began"
    return "\n".join(
        (
            chart.HATCH,
            f"<header><h1>{text(view.name)}</h1><p>{_state(view)} · {held}</p></header>",
            *_jobs(view, MOST_IN_EXCERPT),
            *told,
            *lanes.timeline(view, lanes.TimeWindow(), table=False),
        )
    )


def _page(title: str, body: Iterable[str], read_at: str, root: str) -> str:
    """Return a whole page; `root` is the relative address of the first page."""
    head = (
        # Without it, a browser requests /favicon.ico, whose address lacks the token.
        f'<link rel="icon" href="{root}icon.svg">',
        f'<link rel="stylesheet" href="{root}style.css">',
        f'<script src="{root}live.js" defer></script>',
        f'<noscript><meta http-equiv="refresh" content="{REFRESH_S}"></noscript>',
    )
    footer = (
        '<footer><p><button id="pause" type="button" hidden>Pause</button> '
        f'<span id="live">Read at <time id="read">{text(read_at)}</time></span></p>'
        f'<p><a href="data.json">data.json</a> · hpcext {text(__version__)}, read-only</p></footer>'
    )
    skip = '<a class="skip" href="#content">Skip to the content</a>'
    main = ('<main id="content" tabindex="-1">', *body, "</main>")
    return document(title, head, (skip, *main, footer))


# The first page.

_PILOTS = ("Name", "Kind", "State", "GPUs held", "Jobs", "Done", "Policy", "Begun", "Age")


def _pilot_row(view: PilotView) -> tuple[str, ...]:
    link = f'<a href="pilot/{text(view.id)}/">{text(view.name)}</a>'
    counts = Counter(job.state for job in view.jobs)
    done = sum(job.final for job in view.jobs)
    return (
        link,
        _kind(view),
        _state(view),
        f"{view.held} of {view.gpus}",
        text(", ".join(f"{count} {state}" for state, count in counts.items())) or "none",
        chart.bar(done / len(view.jobs), f"{done} of {len(view.jobs)}") if view.jobs else "",
        text(view.policy),
        _when(view.started_at),
        clock(view.now_s),
    )


def _kind(view: PilotView) -> str:
    return f"{view.kind} in {backends.title(view.batch)}" if view.batch else view.kind


def _state(view: PilotView) -> str:
    if view.managed and view.standing:
        return '<span class="off">○ not known to be managed</span>'
    if view.managed:
        return '<span class="on">● managed</span>' + (", draining" if view.draining else "")
    ended = all(job.final for job in view.jobs)
    return '<span class="off">■ ended</span>' if ended else '<span class="off">○ unmanaged</span>'


# One pilot.


def _head(view: PilotView) -> str:
    facts = {
        "State": _state(view),
        "Kind": _kind(view),
        "Policy": text(view.policy),
        "Begun": _when(view.started_at),
        "Age": clock(view.now_s),
        "GPUs held": f"{view.held} of {view.gpus} now, {percent(view.busy_fraction)} so far",
    }
    if view.outlook:
        utility, gain = view.outlook["utility"], view.outlook["gain"]
        facts["Utility"] = f"{percent(utility)}; one more node would add {gain:+.0%}"
    inner = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts.items())
    hint = f'<p class="trouble">This is its last known state: {text(view.standing)}.</p>'
    return (
        '<nav aria-label="Place"><a href="../../">All pilots</a></nav>'
        f"<header><h1>{text(view.name)}</h1>"
        f'<p class="id">{text(view.id)}</p></header><dl class="facts">{inner}</dl>'
        + (hint if view.standing else "")
    )


def _nodes(view: PilotView) -> list[str]:
    if not view.nodes:
        return ["<p>It has no node.</p>"]
    jobs = {job.id: job for job in view.jobs}
    return [f'<ul class="nodes">{"".join(_node(node, jobs, view) for node in view.nodes)}</ul>']


def _node(node: NodeView, jobs: dict[str, JobView], view: PilotView) -> str:
    cells = [
        f"<li>{chart.chip(jobs[gpu.job], gpu.name) if gpu.job else chart.free(gpu.name)}</li>"
        for gpu in node.gpus
    ]
    told = [counted(node.count, "GPU")]
    if not node.count:
        told = ["wanted back"]
    if node.kind:
        told.append(text(node.kind))
    told += [f"{count} being given to {text(jobs[id].name)}" for id, count in node.unnamed.items()]
    if node.ends_s is not None:
        told.append(f"leaves in {clock(max(0.0, node.ends_s - view.now_s))}")
    return (
        f'<li><h3>{text(node.name)}</h3><p class="note">{"; ".join(told)}</p>'
        f'<ul class="gpus">{"".join(cells)}</ul></li>'
    )


def _jobs(view: PilotView, most: int | None = None) -> list[str]:
    """Return the table of jobs, at most so many; by default all that have not ended."""
    if not view.jobs:
        return ["<p>No job has been submitted yet.</p>"]
    order = {id: place for place, id in enumerate(view.queue)}
    busy = [job for job in view.jobs if job.gpus and not job.final]
    waiting = [job for job in view.jobs if not job.gpus and not job.final]
    ended = sorted((job for job in view.jobs if job.final), key=lambda job: -(job.ended_s or 0.0))
    shown = [
        *busy,
        *sorted(waiting, key=lambda job: order.get(job.id, len(order))),
        *ended[:MOST_ENDED],
    ][:most]
    parts = [
        _table(
            "Running jobs first, then waiting ones, then those that have ended.",
            _JOBS,
            map(_row, shown),
        )
    ]
    if most is not None and len(view.jobs) > most:
        parts.append(paragraph(f"{len(view.jobs) - most} more; hpcext status shows all.", "note"))
    elif len(ended) > MOST_ENDED:
        more = len(ended) - MOST_ENDED
        parts.append(f'<p class="note">{more} more have ended; data.json has them all.</p>')
    return parts


def _row(job: JobView) -> tuple[str, ...]:
    done = ""
    if job.progress is not None:
        done = chart.bar(job.progress, percent(job.progress))
    step = f"step {job.step:,}" if job.step else ""
    worth = job.worth
    return (
        f"{chart.chip(job)} {text(job.name)}",
        text(job.state),
        text(job.role),
        str(job.gpus or ""),
        f"{done} {step}".strip(),
        ", ".join(f"{text(name)} {value:.4g}" for name, value in job.chief),
        "" if job.left_s is None else clock(job.left_s),
        f"{worth['goodput']:.4g}/s at {percent(worth['statistical_efficiency'])}" if worth else "",
        times(job.suspends),
        _lost(job),
    )


def _lost(job: JobView) -> str:
    """Return what was done again: steps, or time of a training that saves by its own means."""
    if not job.lost_steps:
        return job.lost if job.lost_s else ""
    return job.lost.replace(", and", " steps, and") if job.lost_s else f"{job.lost} steps"


def _queue(view: PilotView) -> str:
    if not view.queue:
        return "<p>Nothing waits.</p>"
    jobs = {job.id: job for job in view.jobs}
    rows = [
        (f"{chart.chip(job)} {text(job.name)}", text(job.state), text(job.why))
        for job in (jobs[id] for id in view.queue)
    ]
    return _table("In the order in which the policy considers them.", _QUEUE, rows)


def _harvest(said: dict[str, Any]) -> str:
    offered = said["offered_node_h"]
    parts = [(words, said[f"{key}_node_h"]) for key, words in PARTS.items()]
    rows = [
        (
            chart.swatch(index) + text(words),
            hours(value),
            percent(value / offered) if offered else "",
        )
        for index, (words, value) in enumerate(parts)
    ]
    caption = (
        f"Use of the {hours(offered)} node-hours that were idle or leased; "
        f"{counted(said['leases'], 'lease')} in {clock(said['seen_s'])}."
    )
    return section(
        "harvest",
        "Harvested node-hours",
        chart.stack([value for _, value in parts]),
        _table(caption, ("Use", "Node-hours", "Share"), rows),
    )


def _machine(found: LocalGpus | None, nodes: Collection[str] | None = None) -> str:
    """Return the section of this machine's GPUs, if it has any and is one of these nodes."""
    if found is None or (nodes is not None and found.host not in nodes):
        return ""
    rows = [
        (
            f"GPU {gpu.index}",
            text(gpu.name),
            "" if gpu.used is None else chart.bar(gpu.used, percent(gpu.used)),
            _memory(gpu),
            text(sharing((gpu,))),
        )
        for gpu in found.gpus
    ]
    daemon = " The MPS daemon runs here." if found.mps else ""
    caption = f"As the driver of {found.host} reports them, for all processes there.{daemon}"
    return section("machine", f"GPUs of {found.host}", _table(caption, _MACHINE, rows))


def _memory(gpu: GpuFacts) -> str:
    if not gpu.memory_bytes or gpu.memory_used_bytes is None:
        return ""
    words = f"{gpu.memory_used_bytes / _GIB:.1f} of {gpu.memory_bytes / _GIB:.0f} GiB"
    return chart.bar(gpu.memory_used_bytes / gpu.memory_bytes, words)


# Small parts.


def _table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of cells that are HTML; the first one of a row is its heading.

    Empty columns are left out. On a narrow screen each cell is shown with the label of its column.
    """
    every = [columns, *rows]
    used = [at for at, column in enumerate(zip(*every, strict=True)) if any(column[1:])]
    columns, *kept = [[row[at] for at in used] for row in every]
    head = "".join(f'<th scope="col">{column}</th>' for column in columns)
    lines = "".join(
        f'<tr><th scope="row">{first}</th>'
        + "".join(
            f'<td data-label="{column}">{cell}</td>'
            for column, cell in zip(columns[1:], cells, strict=True)
        )
        + "</tr>"
        for first, *cells in kept
    )
    return (
        f"<table><caption>{text(caption)}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"
    )


def _when(instant: str) -> str:
    day, _, time = instant.partition("T")
    return f'<time datetime="{text(instant)}">{text(day)} {text(time[:5])} UTC</time>'


def _sentence(error: dict[str, str]) -> str:
    """Return the error of a pilot on one line."""
    do = f"; {error['do']}" if error["do"] else ""
    return f"{error['where']}: {error['what']}{do}"

"""The look of reports: their colours, light and dark, and their style sheet.

The colours of curves were chosen so that every two of them differ for people with any kind of
colour blindness (distance in OKLab of at least 0.1 after the simulation of Machado et al. 2009),
and stand out from the page by a contrast of 3:1 or more. Each curve also has its own dashes.
"""

from __future__ import annotations

INK = "ink"
MUTED = "muted"
RULE = "rule"
PAGE = "page"
TRAINING = "training"
HELD = "held"
OFFERED = "offered"
WAITING = "waiting"
CURVES = ("curve1", "curve2", "curve3", "curve4", "curve5")

LIGHT: dict[str, str] = {
    PAGE: "#fefefe",
    INK: "#1b1f26",
    MUTED: "#5a6270",
    RULE: "#d9dde3",
    TRAINING: "#1f62b2",
    HELD: "#a9c8ee",
    OFFERED: "#eef1f5",
    WAITING: "#bf7509",
    CURVES[0]: "#2563b0",
    CURVES[1]: "#c77f0a",
    CURVES[2]: "#a8325f",
    CURVES[3]: "#2a9d8f",
    CURVES[4]: "#23262d",
}
DARK: dict[str, str] = {
    PAGE: "#14171c",
    INK: "#e8eaee",
    MUTED: "#a0a8b5",
    RULE: "#333a45",
    TRAINING: "#4f8fe0",
    HELD: "#2f4c73",
    OFFERED: "#20252d",
    WAITING: "#cf9a32",
    CURVES[0]: "#5b9cf0",
    CURVES[1]: "#e6b13c",
    CURVES[2]: "#d8577a",
    CURVES[3]: "#62d3c6",
    CURVES[4]: "#e9ecf1",
}

DASHES: tuple[tuple[float, ...], ...] = ((), (6, 2), (1.5, 1.5), (7, 2, 1.5, 2), (3, 1.5))
"""The lengths of dashes and gaps, in widths of the line; () is a solid line."""

MOST_CURVES = len(CURVES) * len(DASHES)
"""The largest number of curves that look different."""


def look(index: int) -> tuple[str, tuple[float, ...]]:
    """Return the name of the colour and the dash of a curve; no two below MOST_CURVES are alike."""
    row = index // len(CURVES)
    return CURVES[index % len(CURVES)], DASHES[(index + row) % len(DASHES)]


def _variables(colours: dict[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in colours.items())


CSS = f"""
:root{{color-scheme:light dark;{_variables(LIGHT)}}}
@media (prefers-color-scheme:dark){{:root{{{_variables(DARK)}}}}}
@media print{{:root{{color-scheme:light;{_variables(LIGHT)}}}}}
*{{box-sizing:border-box}}
body{{margin:0;background:var(--page);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif}}
main{{max-width:66rem;margin:0 auto;padding:2.5rem 1.25rem 4rem}}
h1{{font-size:1.9rem;line-height:1.2;margin:0 0 .4rem;letter-spacing:-.01em}}
h2{{font-size:1.25rem;margin:2.8rem 0 .6rem;padding-top:.9rem;border-top:1px solid var(--rule)}}
h3{{font-size:1rem;margin:0 0 .3rem}}
p{{max-width:46rem;margin:.4rem 0 .8rem}}
.lede,figcaption,caption,.note{{color:var(--muted)}}
.lede{{font-size:1.05rem}}
.note,figcaption,caption{{font-size:.875rem}}
h1,h3,dd,li,figcaption,caption,tbody th{{overflow-wrap:anywhere}}
.scroll{{overflow-x:auto;margin:.6rem 0 1.2rem}}
table{{border-collapse:collapse;min-width:100%;font-size:.9rem;font-variant-numeric:tabular-nums}}
caption{{text-align:left;padding:0 0 .4rem}}
th,td{{padding:.38rem .65rem;text-align:right;border-bottom:1px solid var(--rule);
vertical-align:baseline}}
th:first-child,td:first-child{{text-align:left;padding-left:0}}
th:last-child,td:last-child{{padding-right:0}}
thead th{{font-weight:600;color:var(--muted);border-bottom:2px solid var(--rule);
vertical-align:bottom}}
tbody th{{font-weight:600;min-width:10rem;max-width:20rem}}
td{{white-space:nowrap}}
td.words{{white-space:normal;min-width:16rem;overflow-wrap:anywhere;text-align:left;color:var(--muted)}}
th.words{{text-align:left}}
figure{{margin:1rem 0 1.6rem}}
figure svg{{display:block;width:100%;height:auto;margin:.4rem 0}}
svg text{{font-family:inherit!important}}
ul.legend{{list-style:none;display:flex;flex-wrap:wrap;gap:.2rem 1.4rem;padding:0;margin:.4rem 0;
font-size:.875rem}}
ul.legend svg{{display:inline-block;width:2.2rem;height:.8rem;margin:0 .5rem 0 0;
vertical-align:baseline}}
dl{{display:grid;grid-template-columns:max-content 1fr;gap:.3rem 1.5rem;margin:.6rem 0}}
dt{{color:var(--muted)}}
dd{{margin:0}}
a{{color:var(--training)}}
:focus-visible{{outline:2px solid var(--training);outline-offset:2px}}
@media (max-width:40rem){{dl{{grid-template-columns:1fr}}dd{{margin-bottom:.5rem}}}}
@media print{{main{{max-width:none;padding:0}}body{{font-size:11pt}}.scroll{{overflow:visible}}
table{{font-size:8pt}}td{{white-space:normal}}th,td{{padding:.25rem .4rem}}tbody th{{min-width:0}}
h2,h3{{break-after:avoid}}figure,tr{{break-inside:avoid}}}}
"""

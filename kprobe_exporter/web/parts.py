"""The parts that the HTML pages share: frame, style, script, security policy, and how numbers and names are
shown."""

import re
from html import escape

from kprobe_exporter.util.content_security import source_hash

SPARK_WIDTH, SPARK_HEIGHT = 80, 18

NONE = "–"  # noqa: RUF001
"""Shown where a number does not exist or is unknown."""

_STYLE = """
:root { color-scheme: light dark; --line: #8884 }
:root { --good: #1a7f37; --bad: #cf222e; --warn: #9a6700; --dim: #59636e; --link: #0969da }
@media (prefers-color-scheme: dark) {
  :root { --good: #3fb950; --bad: #f85149; --warn: #d29922; --dim: #9198a1; --link: #58a6ff }
}
body { margin: 0 auto; padding: 1rem; max-width: 70rem; font: 14px/1.45 system-ui, sans-serif }
header { display: flex; flex-wrap: wrap; gap: .25rem 1rem; align-items: baseline; color: var(--dim) }
h1 { margin: 0; font-size: 1.35rem; color: CanvasText }
nav { margin-left: auto } nav a { margin-left: .75rem }
a, a:visited { color: var(--link); text-decoration: none } a:hover { text-decoration: underline }
.tiles { display: flex; flex-wrap: wrap; gap: .75rem; margin: 1rem 0 }
.tile { padding: .5rem .9rem; border: 1px solid var(--line); border-radius: .5rem; color: var(--dim) }
.tile b { display: block; font-size: 1.35rem; color: CanvasText; font-variant-numeric: tabular-nums }
.good b { color: var(--good) } .bad b { color: var(--bad) }
table { width: 100%; border-collapse: collapse }
thead, tbody { border-bottom: 1px solid var(--line) }
th, td { padding: .5rem; text-align: left; vertical-align: baseline }
th:first-child, [data-name=Probe] { padding-left: 0 } th:last-child, td:last-child { padding-right: 0 }
th { color: var(--dim) } th[title] { cursor: help }
th:nth-child(1) { width: 8.5rem } th:nth-child(3) { width: 13rem }
td { overflow-wrap: anywhere; unicode-bidi: isolate }
td > * { unicode-bidi: isolate }
[data-name=Plan] { overflow-wrap: normal }
th, small, p, .more { font-size: 12.5px }
small, p, .more { color: var(--dim) }
.more td { padding-top: 0 }
tr:not(:last-child) td { padding-bottom: .1rem } tr td[rowspan] { padding-bottom: .5rem }
tbody tr:first-child { height: 1px }
dl { display: grid; grid-template-columns: minmax(4.5rem, 8rem) 1fr; gap: .25rem .75rem }
dt { color: var(--dim) } dd { margin: 0 } dd, li, h2, h3 { overflow-wrap: anywhere; unicode-bidi: isolate }
dd > *, li > * { unicode-bidi: isolate }
ol { padding-left: 2rem } li b { font-variant-numeric: tabular-nums }
dd .rate { grid-template-columns: 5rem auto; justify-content: start } dd .rate i:only-child { grid-column: 1 }
.heat { gap: 1px .5rem; grid-template-columns: 5rem 1fr }
.heat dt { text-align: right; font-variant-numeric: tabular-nums }
.heat dd { display: grid; grid-template-columns: 1fr 4.5rem; gap: .5rem; align-items: center }
.heat svg { width: 100%; height: .9rem; background: var(--line) } .heat rect { fill: var(--link) }
.heat i { font-style: normal; text-align: right; font-variant-numeric: tabular-nums }
p { max-width: 60rem } p b { color: CanvasText }
small { display: block }
code { font: 13px ui-monospace, monospace }
.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums }
.state { font-weight: 600; white-space: nowrap }
.up .state { color: var(--good) } .down .state { color: var(--bad) }
.disabled .state, .absent .state { color: var(--dim) } .tripped .state { color: var(--warn) }
.rate { display: grid; grid-template-columns: 5rem minmax(max-content, 1fr); gap: .6rem }
.rate i { grid-column: 2; align-self: baseline; text-align: right }
.rate i { font-style: normal; font-variant-numeric: tabular-nums }
svg { grid-row: 1; align-self: center; width: 5rem; height: 1.125rem }
polyline { fill: none; stroke: var(--link); stroke-width: 1.5; vector-effect: non-scaling-stroke }
.stale main { opacity: .5 }
.stale header::after { content: "no answer"; color: var(--bad); font-weight: 600 }
@media (max-width: 56rem) {
  thead { display: none }
  .tile { flex: 1 0 auto }
  table { display: block }
  tbody { display: flex; flex-direction: column; margin: .75rem 0; padding: .5rem .75rem }
  tbody { border: 1px solid var(--line); border-radius: .5rem }
  tr { display: contents }
  tr td { display: grid; grid-template-columns: 4.5rem 1fr; align-items: baseline }
  tr td { padding: .1rem 0; order: 3 }
  td::before { content: attr(data-name); color: var(--dim) }
  td > * { grid-column: 2 }
  .more td { display: block; margin-left: 4.5rem }
  td[data-name=Probe] { order: 1 } td:is([data-name=State], [data-of=State]) { order: 2 }
  td:is([data-name="Hits/s"], .number) { order: 4 }
  .rate { grid-template-columns: 5rem auto; justify-content: start } .rate i:only-child { grid-column: 1 }
  .number { text-align: left; white-space: normal } .rate i { text-align: left }
}
"""

# Updates the page every 2 s and keeps its scroll position. Without scripts, <noscript> reloads it every 10 s.
_SCRIPT = """
setInterval(async () => {
  if (document.hidden) return
  try {
    const answer = await fetch(location.href)
    if (!answer.ok) throw new Error(answer.status)
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html")
    document.querySelector("main").replaceWith(fresh.querySelector("main"))
    document.title = fresh.title
    document.body.classList.remove("stale")
  } catch {
    document.body.classList.add("stale")
  }
}, 2000)
"""


# The pages show names of processes and files. Should one ever get through the escaping, the browser
# still runs, loads and sends nothing: the hashes allow only our own style and script.
CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; style-src {source_hash(_STYLE)}; script-src {source_hash(_SCRIPT)};"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def document(title: str, header: str, main: str) -> bytes:
    """Return a whole page; characters that UTF-8 cannot encode become backslash escapes."""
    page = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<noscript><meta http-equiv="refresh" content="10"></noscript>\n'
        f"<title>{escape(title)} · kprobe_exporter</title>\n"
        f"<style>{_STYLE}</style>\n</head>\n<body>\n{header}"
        f"<main>\n{main}</main>\n<script>{_SCRIPT}</script>\n</body>\n</html>\n"
    )
    return page.encode("utf-8", "backslashreplace")


def breakable(text: str) -> str:
    """Escape a text and allow line breaks after ``:``, ``_`` and ``/``."""
    return "<wbr>".join(map(escape, re.split(r"(?<=[:_/])", text)))


def spark(rates: tuple[float, ...]) -> str:
    """Render the hits a second over time as a line, with the maximum at the upper edge."""
    if len(rates) < 2 or not (most := max(rates)):
        return ""
    step = SPARK_WIDTH / (len(rates) - 1)
    points = " ".join(
        f"{number * step:.1f},{(1 - value / most) * (SPARK_HEIGHT - 2) + 1:.1f}"
        for number, value in enumerate(rates)
    )
    return (
        f'<svg viewBox="0 0 {SPARK_WIDTH} {SPARK_HEIGHT}" role="img">'
        f"<title>at most {rate(most)} hits a second</title>"
        f'<polyline points="{points}"/></svg>'
    )


def count(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}"


def rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}" if value >= 0.1 else "< 0.1"

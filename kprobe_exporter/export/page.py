"""What the status page looks like and how it keeps up to date: its style, its script, its security policy."""

import base64
import hashlib

STYLE = """
:root { color-scheme: light dark; --line: #8884 }
:root { --good: #1a7f37; --bad: #cf222e; --warn: #9a6700; --dim: #59636e }
@media (prefers-color-scheme: dark) {
  :root { --good: #3fb950; --bad: #f85149; --warn: #d29922; --dim: #9198a1 }
}
body { margin: 0 auto; padding: 1rem; max-width: 90rem; font: 15px/1.45 system-ui, sans-serif }
header { display: flex; flex-wrap: wrap; gap: .25rem 1rem; align-items: baseline; color: var(--dim) }
h1 { margin: 0; font-size: 1.35rem; color: CanvasText }
nav { margin-left: auto } nav a { margin-left: .75rem }
a { color: LinkText }
.tiles { display: flex; flex-wrap: wrap; gap: .75rem; margin: 1rem 0 }
.tile { padding: .5rem .9rem; border: 1px solid var(--line); border-radius: .5rem; color: var(--dim) }
.tile b { display: block; font-size: 1.35rem; color: CanvasText; font-variant-numeric: tabular-nums }
.good b { color: var(--good) } .bad b { color: var(--bad) }
table { width: 100%; border-collapse: collapse }
th, td { padding: .45rem .6rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line) }
th { font-size: .8rem; color: var(--dim) }
td { overflow-wrap: anywhere; unicode-bidi: isolate }
td > * { unicode-bidi: isolate }
small { display: block; color: var(--dim); max-width: 26rem }
code { font: .9em ui-monospace, monospace }
.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums }
.state { font-weight: 600 }
.up .state { color: var(--good) } .failed .state { color: var(--bad) } .tripped .state { color: var(--warn) }
.disabled .state { color: var(--dim) }
svg { width: 7.5rem; height: 1.5rem; margin-right: .6rem; vertical-align: middle }
polyline { fill: none; stroke: var(--good); stroke-width: 1.5; vector-effect: non-scaling-stroke }
.stale main { opacity: .5 }
.stale header::after { content: "no answer"; color: var(--bad); font-weight: 600 }
@media (max-width: 50rem) {
  thead { display: none }
  table, tbody, tr, td { display: block }
  tr { margin: .75rem 0; padding: .5rem .75rem; border: 1px solid var(--line); border-radius: .5rem }
  td { display: flex; flex-wrap: wrap; gap: 0 .6rem; border: 0; padding: .15rem 0; text-align: left }
  td::before { content: attr(data-name); flex: 0 0 4.5rem; color: var(--dim) }
  td:empty { display: none }
  small { flex-basis: 100%; max-width: none; padding-left: 5.1rem }
  .number { text-align: left; white-space: normal }
}
"""

# It brings fresh numbers into a page that stays where it was scrolled to; without it the page is
# loaded again every 10 s (<noscript>).
SCRIPT = """
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


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# The names of processes and files end up on the page: should one ever slip through the escaping,
# the browser still runs, loads and sends nothing. The hashes let in our own style and script alone.
CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; style-src {_hash(STYLE)}; script-src {_hash(SCRIPT)}; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

"""The status page: every probe with its state, in HTML that needs nothing from anywhere else."""

import base64
import hashlib
from collections.abc import Iterable
from html import escape

from kprobe_exporter.model import ProbeStatus, Snapshot

_STYLE = """
:root { color-scheme: light dark; font: 14px/1.5 system-ui, sans-serif }
body { margin: 2rem }
table { border-collapse: collapse }
th, td { padding: .25rem .75rem; text-align: left; vertical-align: top }
th, td { border-bottom: 1px solid #8884 }
td { overflow-wrap: anywhere; unicode-bidi: isolate }
td small { display: block; max-width: 24rem; color: #888 }
td.number { text-align: right; font-variant-numeric: tabular-nums }
.up { color: #1a7f37 } .failed { color: #d1242f } .disabled { color: #888 }
"""

# The names of processes and files end up on the page: should one ever slip through the escaping,
# the browser still runs, loads and sends nothing. The hash lets in our own style alone.
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

_COLUMNS = ("Probe", "State", "Kind", "Plan", "Target", "Hits", "Misses", "Events", "Reason")


def render_status(snapshot: Snapshot, telemetry_path: str) -> bytes:
    """The whole page; a value that is no valid text appears with backslashes."""
    up = sum(probe.state == "up" for probe in snapshot.probes)
    page = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>kprobe_exporter</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        "<h1>kprobe_exporter</h1>\n"
        f"<p>{up} of {len(snapshot.probes)} probes up"
        f' · <a href="{escape(telemetry_path)}">metrics</a>'
        ' · <a href="/-/healthy">healthy</a> · <a href="/-/ready">ready</a></p>\n'
        f"<table>\n<thead>\n<tr>{_cells('th', _COLUMNS)}</tr>\n</thead>\n<tbody>\n"
        f"{''.join(map(_row, snapshot.probes))}"
        "</tbody>\n</table>\n</body>\n</html>\n"
    )
    return page.encode("utf-8", "backslashreplace")


def _row(probe: ProbeStatus) -> str:
    numbers = map(_number, (probe.hits, probe.misses, probe.events))
    return (
        "<tr>"
        + _cells("td", [probe.name])
        + _cells("td", [probe.state], probe.state)
        + _cells("td", [probe.kind])
        + f"<td>{_plan(probe)}</td>"
        + _cells("td", [probe.target])
        + _cells("td", numbers, "number")
        + _cells("td", [probe.reason])
        + "</tr>\n"
    )


def _plan(probe: ProbeStatus) -> str:
    reason = f" <small>{escape(probe.because)}</small>" if probe.because else ""
    return escape(probe.plan) + reason


def _cells(tag: str, texts: Iterable[str], css_class: str = "") -> str:
    start = f'<{tag} class="{escape(css_class)}">' if css_class else f"<{tag}>"
    return "".join(f"{start}{escape(text)}</{tag}>" for text in texts)


def _number(value: int | None) -> str:
    return "" if value is None else str(value)

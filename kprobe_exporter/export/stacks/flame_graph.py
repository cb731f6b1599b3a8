"""A flame graph as one SVG: the stacks of a profile, each function above what it calls, as wide as it weighs.

It needs no script to be read: a browser's search finds names, and a pointer shows numbers. Its script
enlarges a frame at a click or Enter, Escape shows all again, and a search marks frames and adds up their
share.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape

from kprobe_exporter.errors import counted
from kprobe_exporter.export.stacks.folded import frame_name
from kprobe_exporter.model.stacks import Profile, of_program
from kprobe_exporter.util.content_security import source_hash

CONTENT_TYPE = "image/svg+xml"

ROW, HEAD = 18, 60

NARROWEST = 0.0005
"""The share below which a frame is omitted, because it would be narrower than a pixel."""

MOST_ROWS = 128

_STYLE = """
svg { font: 12px ui-monospace, monospace; background: Canvas; color-scheme: light dark }
text { fill: CanvasText } .f text { fill: #111 } .title { font: 600 16px system-ui, sans-serif }
.f { cursor: pointer } .f:focus { outline: none }
.f:hover rect, .f:focus rect { stroke: CanvasText; stroke-width: 2 }
.found rect { fill: #c08cff; stroke: #50208c } .found text { font-weight: 700 } .out { opacity: .35 }
.button { cursor: pointer; text-decoration: underline } .idle { display: none }
"""

_SCRIPT = """
const all = [...document.querySelectorAll(".f")], said = document.getElementById("said")
const of = (box, name) => parseFloat(box.dataset[name])
function zoom(to) {
  const left = of(to, "x"), width = of(to, "w"), depth = of(to, "d")
  for (const box of all) {
    const x = of(box, "x"), w = of(box, "w")
    const above = of(box, "d") < depth && x <= left + 1e-9 && x + w >= left + width - 1e-9
    const inside = x >= left - 1e-9 && x + w <= left + width + 1e-9
    box.style.display = above || inside ? "" : "none"
    box.setAttribute("x", above ? "0%" : (x - left) / width * 100 + "%")
    box.setAttribute("width", above ? "100%" : w / width * 100 + "%")
    box.classList.toggle("out", above && box !== to)
  }
  document.getElementById("whole").classList.toggle("idle", to === all[0])
}
function showAll() {
  all[0].focus()
  zoom(all[0])
}
function find() {
  const asked = prompt("Which functions? A regular expression:")
  if (asked === null) return
  let wanted
  try { wanted = new RegExp(asked) } catch { said.textContent = "This is not a regular expression."; return }
  const spans = []
  for (const box of all) {
    const is = asked !== "" && wanted.test(box.dataset.n)
    box.classList.toggle("found", is)
    if (is) spans.push([of(box, "x"), of(box, "x") + of(box, "w")])
  }
  let share = 0, end = 0
  for (const [from, to] of spans.sort((a, b) => a[0] - b[0])) {
    share += Math.max(0, to - Math.max(from, end)); end = Math.max(end, to)
  }
  said.textContent = asked === "" ? "" : spans.length + " frames, " + share.toFixed(1) + " %"
}
document.addEventListener("click", event => {
  const box = event.target.closest(".f")
  if (box) zoom(box)
  else if (event.target.closest("#find")) find()
  else if (event.target.closest("#whole")) showAll()
})
document.addEventListener("keydown", event => {
  if (event.key === "Enter" && document.activeElement.matches(".f")) zoom(document.activeElement)
  if (event.key === "Enter" && document.activeElement.matches("#find") || event.key === "/") {
    event.preventDefault(); find()
  }
  const back = event.key === "Enter" && document.activeElement.matches("#whole")
  if (back || event.key === "Escape") showAll()
})
"""


CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; style-src {source_hash(_STYLE)}; script-src {source_hash(_SCRIPT)};"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""A browser runs only the script above, however functions are named."""


@dataclass(slots=True)
class _Frame:
    """A function under its callers, with the weight of all stacks that go through it."""

    weight: int = 0
    called: dict[bytes, "_Frame"] = field(default_factory=dict)


def flame_graph(profile: Profile, page: str = "") -> bytes:
    """Return the flame graph of a profile, weighed by its field or else by hits.

    It links to the probe's ``page``, if that has an address.
    """
    root = _Frame()
    for stack, (hits, total) in profile.stacks.items():
        weight = hits if profile.weigh is None else total
        at = root
        at.weight += weight
        for frame in list(reversed(stack))[:MOST_ROWS]:
            at = at.called.setdefault(frame, _Frame())
            at.weight += weight
    boxes = [_box(b"all", root, profile, root.weight, 0.0, 0), *_boxes(root, profile, root.weight, 0.0, 1)]
    rows = 1 + max(depth for depth, _ in boxes)
    height = HEAD + rows * ROW + ROW
    shown = "".join(text for _, text in boxes) if root.weight else ""
    title = _title(profile)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="100%" height="{height}" role="group" '
        f'aria-label="{title}">\n<title>{title}</title>\n<style>{_STYLE}</style>\n'
        f'<text class="title" x="8" y="22">{title}</text>\n'
        f'<text x="8" y="44">{_summary(profile)}</text>\n'
        f"{_link(page)}"
        '<text id="whole" class="button idle" x="100%" dx="-100" y="22" text-anchor="end" tabindex="0" '
        'role="button">all (Esc)</text>\n'
        '<text id="find" class="button" x="100%" dx="-8" y="22" text-anchor="end" tabindex="0" role="button">'
        "search (/)</text>\n"
        '<text id="said" x="100%" dx="-8" y="44" text-anchor="end" role="status"></text>\n'
        f"{shown}<script><![CDATA[{_SCRIPT}]]></script>\n</svg>\n"
    ).encode("utf-8", "backslashreplace")


def _link(page: str) -> str:
    """Return the link to a probe's page, next to the two buttons."""
    if not page:
        return ""
    href = escape(page, quote=True)
    return (
        f'<a href="{href}"><text class="button" x="100%" dx="-180" y="22" text-anchor="end">'
        "the probe's page</text></a>\n"
    )


def _boxes(
    parent: _Frame, profile: Profile, whole: int, left: float, depth: int
) -> Iterator[tuple[int, str]]:
    for name, frame in sorted(parent.called.items()):
        if whole and frame.weight / whole >= NARROWEST:
            yield _box(name, frame, profile, whole, left, depth)
            yield from _boxes(frame, profile, whole, left, depth + 1)
        left += frame.weight / whole * 100 if whole else 0


def _box(
    name: bytes, frame: _Frame, profile: Profile, whole: int, left: float, depth: int
) -> tuple[int, str]:
    """Return a frame's row and its element: a part of the picture of its own, which cuts off its text."""
    width = frame.weight / whole * 100 if whole else 100.0
    shown = escape(frame_name(name).decode(), quote=True)
    about = f"{shown}: {_amount(frame.weight, profile)}, {width:.2f} %"
    return depth, (
        f'<svg class="f" tabindex="0" role="img" aria-label="{about}" data-n="{shown}" data-d="{depth}" '
        f'data-x="{left:.5f}" data-w="{width:.5f}" x="{left:.5f}%" width="{width:.5f}%" '
        f'y="{HEAD + depth * ROW}" height="{ROW - 1}"><title>{about}</title>'
        f'<rect width="100%" height="100%" rx="2" fill="{_colour(name)}"/>'
        f'<text x="4" y="13">{shown}</text></svg>\n'
    )


def _colour(name: bytes) -> str:
    """Return a colour that is always the same for a function: warm in the kernel, cool in a program."""
    found = hashlib.blake2b(name, digest_size=2).digest()
    hue, saturation = (150 + found[0] % 60, 45) if of_program(name) else (20 + found[0] % 36, 85)
    return f"hsl({hue} {saturation}% {62 + found[1] % 14}%)"


def _title(profile: Profile) -> str:
    weighed = "by hits" if profile.weigh is None else f"by {profile.weigh}"
    outside = any(of_program(frame) for stack in profile.stacks for frame in stack)
    of = "stacks" if outside else "kernel stacks"
    return escape(re.sub(r"[^ -~]", "_", f"{profile.probe}: {of} {weighed}"), quote=True)


def _summary(profile: Profile) -> str:
    total = sum(weight.total for weight in profile.stacks.values())
    parts = [f"{counted(profile.hits, 'hit')} in {counted(len(profile.stacks), 'stack')}"]
    if profile.weigh is not None:
        parts.append(f"{_amount(total, profile)} in all threads together")
    parts.append(f"counted for {max(0, profile.until - profile.since) / 1e9:,.0f} s")
    if profile.lost:
        parts.append(f"{profile.lost:,} hits lost")
    return escape("; ".join(parts))


def _amount(weight: int, profile: Profile) -> str:
    if profile.weigh is None:
        return f"{weight:,} hits"
    return f"{weight / 1e9:,.6g} s" if profile.weigh == "duration" else f"{weight:,}"

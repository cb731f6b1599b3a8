"""Folded text, flame graphs and pprof: what readers of their own make of them, with any names."""

import re
from base64 import b64encode
from hashlib import sha256
from typing import Any
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from kprobe_exporter.export.stacks.flame_graph import CONTENT_SECURITY_POLICY, flame_graph
from kprobe_exporter.export.stacks.folded import folded
from kprobe_exporter.model.stacks import Profile, Weight
from tests.support.pprof import read

SECOND = 1_000_000_000
STACKS = {
    (b"vfs_read", b"ksys_read", b"do_syscall_64"): Weight(3, 30),
    (b"vfs_write", b"ksys_write", b"do_syscall_64"): Weight(1, 70),
    (b"vfs_read", b"kthread"): Weight(2, 0),
}
HITS = Profile("open", None, STACKS, 0, 5 * SECOND, 8 * SECOND)
TIMES = HITS._replace(weigh="duration", lost=7)

SVG = "{http://www.w3.org/2000/svg}"

frames = st.one_of(
    st.sampled_from([b"]]></script><script>", b"<&\"'>", b"a;b c", b"\n", b"", b"\xff\xfe", b"\0"]),
    st.binary(max_size=12),
)
profiles = st.dictionaries(
    st.lists(frames, max_size=4).map(tuple),
    st.builds(Weight, st.integers(1, 2**40), st.integers(0, 2**63)),
    max_size=6,
).map(lambda stacks: TIMES._replace(stacks=stacks, lost=0))


def stacks_of(found: Any) -> dict[tuple[str, ...], tuple[int, ...]]:
    text = found.string_table
    names = {function.id: text[function.name] for function in found.function}
    places = {place.id: names[place.line[0].function_id] for place in found.location}
    return {tuple(places[one] for one in sample.location_id): tuple(sample.value) for sample in found.sample}


def test_folded_text() -> None:
    assert folded(HITS) == (
        b"do_syscall_64;ksys_read;vfs_read 3\nkthread;vfs_read 2\ndo_syscall_64;ksys_write;vfs_write 1\n"
    )
    timed = b"do_syscall_64;ksys_write;vfs_write 70\ndo_syscall_64;ksys_read;vfs_read 30\n"
    assert folded(TIMES._replace(lost=0)) == timed


def test_folded_text_reports_lost_hits() -> None:
    """The sum of all lines by hits is that of all hits. A field's sum over the lost hits is not known."""
    assert folded(HITS._replace(lost=7)) == folded(HITS) + b"[hits_lost] 7\n"
    assert folded(TIMES) == folded(TIMES._replace(lost=0)) + b"[7_hits_lost] 0\n"


def test_pprof() -> None:
    found = read(TIMES)
    text = found.string_table
    assert text[0] == ""
    types = [(text[one.type], text[one.unit]) for one in found.sample_type]
    assert types == [("hits", "count"), ("duration", "nanoseconds")]
    assert text[found.default_sample_type] == "duration"
    whole = {tuple(map(bytes.decode, stack)): weight for stack, weight in STACKS.items()}
    assert stacks_of(found) == {**whole, ("[hits_lost]",): (7, 0)}
    assert (found.time_nanos, found.duration_nanos) == (5 * SECOND, 3 * SECOND)
    assert [text[one] for one in found.comment] == ["7 hits are missing, whose stacks were not kept or lost"]
    assert stacks_of(read(HITS))[("vfs_read", "kthread")] == (2,)


def test_different_names_in_pprof() -> None:
    names = [b"\x9b", "\x9b".encode(), rb"\x9b", b"\n", rb"\n", b"\\", "\u202e".encode(), rb"\u202e"]
    found = read(HITS._replace(stacks={(name,): Weight(1, 0) for name in names}))
    shown = {text for (text,) in stacks_of(found)}
    assert len(shown) == len(names)
    assert all(text.isprintable() for text in shown)


def test_a_flame_graph() -> None:
    root = ElementTree.fromstring(flame_graph(HITS))
    boxes = {box.get("data-n"): box for box in root.iter(f"{SVG}svg") if box.get("class") == "f"}
    assert boxes["do_syscall_64"].get("data-w") == "66.66667"
    assert boxes["ksys_read"].get("aria-label") == "ksys_read: 3 hits, 50.00 %"
    assert boxes["all"].get("data-w") == "100.00000"
    assert root.findtext(f"{SVG}title") == "open: kernel stacks by hits"
    assert "6 hits in 3 stacks; counted for 3 s" in "".join(root.itertext())
    assert "7 hits lost" in flame_graph(TIMES).decode()
    assert "1e-07 s in all threads together; counted for " in flame_graph(TIMES).decode()


def test_flame_graph_links_to_the_page_that_it_is_given() -> None:
    root = ElementTree.fromstring(flame_graph(HITS, '/probe/a"<b>'))
    assert [link.get("href") for link in root.iter(f"{SVG}a")] == ['/probe/a"<b>']
    assert not list(ElementTree.fromstring(flame_graph(HITS)).iter(f"{SVG}a"))


def test_a_profile_without_stacks() -> None:
    nothing = HITS._replace(stacks={})
    assert folded(nothing) == b""
    assert len(read(nothing).sample) == 0
    ElementTree.fromstring(flame_graph(nothing))


@given(profiles)
def test_any_names(profile: Profile) -> None:
    """No name makes a line, an element or a script; no stack is lost but those that weigh nothing."""
    lines = folded(profile).splitlines()
    assert len(lines) == sum(weight.total > 0 for weight in profile.stacks.values())
    for line in lines:
        assert re.fullmatch(rb"[!-~]+ \d+", line)
    assert sorted(int(line.rsplit(b" ", 1)[1]) for line in lines) == sorted(
        weight.total for weight in profile.stacks.values() if weight.total
    )
    root = ElementTree.fromstring(flame_graph(profile))
    assert {one.tag.removeprefix(SVG) for one in root.iter()} <= {
        "svg",
        "title",
        "style",
        "text",
        "script",
        "rect",
    }
    assert len(list(root.iter(f"{SVG}script"))) == 1
    values = [tuple(sample.value) for sample in read(profile).sample]
    assert sorted(values) == sorted(
        (weight.hits, weight.total - (weight.total >> 63 << 64)) for weight in profile.stacks.values()
    )


def test_the_policy_allows_the_script_and_the_style_alone() -> None:
    root = ElementTree.fromstring(flame_graph(HITS))
    for tag in ("script", "style"):
        [text] = [one.text or "" for one in root.iter(f"{SVG}{tag}")]
        assert (
            f"{tag}-src 'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
            in CONTENT_SECURITY_POLICY
        )
    assert CONTENT_SECURITY_POLICY.startswith("default-src 'none'")

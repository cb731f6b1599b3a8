"""Probes on programs in containers: attached where such a container starts, released after the last one."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from kprobe_exporter.agent.probe import ProbeState
from kprobe_exporter.agent.replaced_files import Planner
from kprobe_exporter.probing.attach import Attached
from kprobe_exporter.probing.container_files import ContainerFiles, FileKey, Inode
from kprobe_exporter.util.deadline import NO_ANSWER

log = logging.getLogger(__name__)

MOST_FILES = 16
"""Files to which one probe is attached at a time: versions of its program, in different containers."""


class ContainerProbes:
    """Follows the containers of probes that select some. The thread that holds the change lock owns it.

    One file is attached at a look, so that a change stays short. A file of which a probe was refused is not
    tried again while a container has it. One whose file system did not answer is.
    """

    def __init__(self, files: ContainerFiles) -> None:
        self._files = files
        self._tried: set[tuple[str, FileKey]] = set()
        self._full: set[str] = set()

    def changes(
        self, probes: Iterable[ProbeState], plan: Planner, now: float
    ) -> Mapping[ProbeState, ProbeState]:
        """Return the successor of each probe whose containers have another file, or no longer one.

        It calls ``plan`` for one probe at a time. A probe that is sampled, off or contested stays as it is.
        """
        selecting = [one for one in probes if one.plan.probe.within is not None]
        self._files.look((one.plan.probe for one in selecting), now)
        found: dict[ProbeState, ProbeState | None] = {}
        for old in selecting:
            there = self._files.files(old.name)
            attached = self._by_file(old)
            mine = {(old.name, file) for file in there if file not in attached}
            self._tried = {one for one in self._tried if one[0] != old.name or one in mine}
            if old.plan.waiting and not there and (why := self._files.denied(old.name)):
                found[old] = ProbeState(old.plan.refused(why))
            elif old.state in ("up", "down") and old.sample is None:
                kept = tuple(one for file, one in attached.items() if file is not None)
                found[old] = self._attached_more(old, mine, kept, plan) or self._released(old, kept)
        return {old: new for old, new in found.items() if new is not None}

    def _attached_more(
        self, old: ProbeState, there: Iterable[tuple[str, FileKey]], kept: tuple[Attached, ...], plan: Planner
    ) -> ProbeState | None:
        """Return a successor that is to be attached to one of these files too, None if there is none."""
        new_ones = sorted(set(there) - self._tried)
        if new_ones and self._is_full(old.name, len(kept)):
            return None
        for name, file in new_ones:
            planned = self._files.plan(old.plan.probe, lambda placed: plan([placed])[0], file)
            if planned.waiting:  # the container has ended since
                continue
            if NO_ANSWER not in planned.refusals:
                self._tried.add((name, file))
            elif kept or NO_ANSWER in old.plan.refusals:
                continue  # a later look tries again
            if kept and planned.refusals:
                why = planned.refusals
                log.warning("the probe '%s' is not attached in another container: %s", name, why)
                continue
            new = ProbeState.of(planned)
            new.older, new.logged = kept, old.logged
            return new
        return None

    def _is_full(self, name: str, files: int) -> bool:
        """Return whether a probe has as many files as it may have; log it once while that is so."""
        if files < MOST_FILES:
            self._full.discard(name)
            return False
        if name not in self._full:
            self._full.add(name)
            log.warning(
                "the probe '%s' is in %d files: those of further containers are not probed", name, files
            )
        return True

    def _released(self, old: ProbeState, kept: tuple[Attached, ...]) -> ProbeState | None:
        """Return a successor with only the attachments ``kept``, None if these are all."""
        if not old.attachments or (kept == old.attachments and old.attached is not None):
            return None
        if kept:
            return replace(old, state="up", attached=kept[0], older=kept[1:], reason="")
        why = f"no container that fits {old.plan.probe.within} runs any more"
        return ProbeState(old.plan.waits(why), logged=old.logged)

    def _by_file(self, probe: ProbeState) -> dict[FileKey | None, Attached]:
        """Return how the probe is attached, by file, the newest first."""
        return {self._files.file_of(probe.name, _inodes(one)): one for one in probe.attachments}


def _inodes(attached: Attached) -> Iterator[Inode]:
    return (part.spec.inode for part in attached.parts if part.spec.inode is not None)

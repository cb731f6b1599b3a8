"""Defines a probe's event in the kernel under a free name, or reuses a retired definition."""

import errno
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from kprobe_exporter.errors import ProbeRefused
from kprobe_exporter.grammar.target import parse_target
from kprobe_exporter.model.specs import ProbeSpec
from kprobe_exporter.tracefs.definitions import delete, parse_definitions
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.profile import PROFILED, Counts, profile_counts
from kprobe_exporter.tracefs.refusal import IN_FILE, MEANING, REPLACED, NotBuilt, refused, why
from kprobe_exporter.util.file_access import NotRegularError

NAMES_TRIED = 1000

BAD_MAXACTIVE = "Invalid maxactive number"
"""BAD_MAXACT of kernel/trace/trace_probe.h."""


class DefinedEvent(NamedTuple):
    """The event of a probe.

    ``before`` is what the kernel's profile had counted of a retired definition when it was reused. It is None
    if the definition is new.
    """

    name: str
    before: Counts | None = None


def define(instance: Instance, spec: ProbeSpec, taken: set[str]) -> DefinedEvent:
    """Define the event of a probe under a name that is not in ``taken``, which is kept up to date.

    Raises ProbeRefused, and then leaves nothing behind.
    """
    assert spec.file is not None
    if not instance.files.exists(spec.file):
        raise NotBuilt(not_built(spec.file))
    if (again := _take_up(instance, spec)) is not None:
        return again
    path, given = _paths(instance, spec)
    bodies = [given + body.removeprefix(path) for body in (spec.body, *spec.more)]
    written = replace(spec, body=bodies[0], more=tuple(bodies[1:]))
    name = spec.layout.event
    for event in chain((name,), (f"{name}_{number}" for number in range(2, NAMES_TRIED + 2))):
        if event in taken:
            continue
        is_new = _write_definition(instance, written, event, path, given)
        taken.add(event)
        if is_new:
            _write_more(instance, written, event, path, given)
            return DefinedEvent(event)
    raise ProbeRefused(f"all of {NAMES_TRIED} event names like '{name}' are taken.")


def _write_definition(instance: Instance, spec: ProbeSpec, event: str, path: str, given: str) -> bool:
    """Define the event. Return False if its name is taken. Raises ProbeRefused."""
    assert spec.file is not None
    line = spec.line(instance.group, event)
    try:
        instance.files.write(spec.file, line)
    except OSError as error:
        if error.errno == errno.EEXIST:
            return False
        reason = why(instance.files, error, line, "error_log", meanings=meanings_for(spec))
        if spec.verb.startswith("f") and spec.verb != "f" and BAD_MAXACTIVE in reason:
            # Linux 6.12 takes an fprobe's MAXACTIVE, and misses calls without it; 7.2 refuses it.
            return _write_definition(instance, replace(spec, verb="f"), event, path, given)
        raise refused(error, reason.replace(given, path)) from None
    return True


def _write_more(instance: Instance, spec: ProbeSpec, event: str, path: str, given: str) -> None:
    """Define the further places of the event. Raises ProbeRefused, and then leaves none of them.

    Since Linux 5.4, a definition under the name of one that exists is added to its event (commit
    60d53e2c3b75, append_trace_uprobe() of kernel/trace/trace_uprobe.c). Before, it replaced the event.
    """
    if not spec.more:
        return
    try:
        for body in spec.more:
            if not _write_definition(instance, replace(spec, body=body), event, path, given):
                raise ProbeRefused(f"another program defines an event '{event}' at the same time.")
        known = parse_definitions(instance.files.read("uprobe_events").decode(errors="replace"))
        places = sum((one.group, one.event) == (instance.group, event) for one in known)
        if places != 1 + len(spec.more):
            raise ProbeRefused("this kernel cannot attach one event to several places, as Linux 5.4 does.")
    except BaseException:
        delete(instance.files, instance.group, event)
        raise


def _take_up(instance: Instance, spec: ProbeSpec) -> DefinedEvent | None:
    """Reuse a retired definition that is the same and still exists, without a filter. Its profile counts on.

    An fprobe on a module's function is never reused: it stays bound to the old address (tried on 6.12).
    """
    assert spec.file is not None
    if spec.verb.startswith("f") and parse_target(spec.target).module:
        return None
    wanted = _definition(spec)
    event = next((event for event, one in [*instance.retired.items()] if _definition(one) == wanted), None)
    if event is None:
        return None
    retired = instance.retired.pop(event)
    directory = f"events/{instance.group}/{event}"
    if not instance.files.exists(f"{instance.path}/{directory}/enable"):
        return None
    count: Counts | None = Counts(0, 0)
    try:
        if spec.file in PROFILED:
            count = profile_counts(instance.files, instance.group, spec.file).get(event)
        instance.write(f"{directory}/filter", "0")  # this may have failed when it was retired
    except OSError:
        count = None
    if count is None:
        instance.retired[event] = retired
        return None
    return DefinedEvent(event, count)


def _definition(spec: ProbeSpec) -> tuple[object, ...]:
    """Return what makes two definitions the same: the line without its names, and the requested event name.

    A uprobe's definition keeps the inode that its path named when it was written (kern_path() in
    kernel/trace/trace_uprobe.c). So the same line for a file that was replaced since is another definition.
    """
    return spec.file, spec.verb, spec.body, spec.more, spec.layout.event, spec.inode


def _paths(instance: Instance, spec: ProbeSpec) -> tuple[str, str]:
    """Return the path of a place in a file, and the one that the kernel is given instead of it.

    The kernel opens a path again (kern_path() in kernel/trace/trace_uprobe.c). By then it may name a file in
    which the offset is in the middle of an instruction. So the kernel is given the descriptor of the file
    that was parsed. Raises ProbeRefused.
    """
    if spec.file != "uprobe_events":
        return "", ""
    path = spec.path
    try:
        given = instance.probed_files.path(path, spec.inode)
    except NotRegularError as error:
        raise ProbeRefused(f"{path} {error}.") from None
    except (OSError, ValueError) as error:
        code = error.errno if isinstance(error, OSError) else None
        raise ProbeRefused(f"{path} cannot be opened: {IN_FILE.get(code or 0, error)}.") from None
    if given is None:
        raise ProbeRefused(f"{path} {REPLACED}.")
    return path, given


def meanings_for(spec: ProbeSpec) -> Mapping[int, str]:
    """Return what each errno means for a probe of this kind."""
    return IN_FILE if spec.file == "uprobe_events" else MEANING


def not_built(file: str) -> str:
    """Return a sentence that says why there is no such definitions file."""
    return f"this kernel was built without CONFIG_{file.upper()} (no {file})."

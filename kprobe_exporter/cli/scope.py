"""The options that limit a command to the threads of a scope."""

import functools
import shlex
from collections.abc import Callable, Collection
from typing import Any

import click

from kprobe_exporter.errors import UsageError
from kprobe_exporter.probing.scope import PROPERTIES, Scope, user_id

SCOPE_OPTIONS = {
    "pid": click.option("-p", "--pid", type=click.IntRange(min=1), metavar="PID", help="Only this process."),
    "tid": click.option("-L", "--tid", type=click.IntRange(min=1), metavar="TID", help="Only this thread."),
    "children": click.option("--children", is_flag=True, help="With -p: also all that the process starts."),
    "command": click.option(
        "-c",
        "--command",
        metavar="COMMAND",
        help="Only this command, which is started for it, and all that it starts; ends with it.",
    ),
    "comm": click.option("--comm", metavar="NAME", help="Only threads of this name, as 'nginx' or 'php*'."),
    "uid": click.option("--uid", metavar="USER", help="Only processes of this user, by name or number."),
    "container": click.option(
        "--container", metavar="PATTERN", help="Only these containers, by name in a pod or by id."
    ),
    "pod": click.option("--pod", metavar="PATTERN", help="Only pods of this NAME or NAMESPACE/NAME."),
    "cgroup": click.option("--cgroup", metavar="PATH", help="Only this cgroup, and those below it."),
}
"""The options that limit a command to some threads, by their fields in a Scope."""

SCOPE_NAMES = {"pid": "-p", "tid": "-L", "command": "-c"}


def scope_options(*, without: Collection[str] = ()) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the options of a scope, which come as its parameter ``scope``.

    The fields of a Scope in ``without`` get no option.
    """
    options = {name: option for name, option in SCOPE_OPTIONS.items() if name not in without}

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_scope(*args: Any, **given: Any) -> Any:
            none = dict.fromkeys(without)
            scope = _scope(**none, **{name: given.pop(name) for name in options})
            return command(*args, scope=scope, **given)

        for option in reversed(options.values()):
            option(with_scope)  # notes itself at the function, and returns that
        return with_scope

    return decorate


def _scope(*, command: str | None, uid: str | None, **given: Any) -> Scope:
    """Return the scope that the options give. Raises UsageError."""
    try:
        words = tuple(shlex.split(command or ""))
    except ValueError as error:
        raise UsageError(f"-c {command!r}: {error} (quote as in a shell).") from None
    if command is not None and not words:
        raise UsageError("-c: the command is empty.")
    scope = Scope(command=words, uid=None if uid is None else user_id(uid), **given)
    ways = [SCOPE_NAMES[name] for name in SCOPE_NAMES if getattr(scope, name)]
    ways += [f"--{name}" for name in PROPERTIES if getattr(scope, name) is not None][:1]
    if len(ways) > 1:
        raise UsageError(f"{ways[0]} and {ways[1]} do not go together: each chooses the threads alone.")
    if scope.children and scope.pid is None and not words:
        raise UsageError("--children is of one process: give -p PID, too.")
    if "" in (scope.comm, scope.container, scope.pod, scope.cgroup):
        raise UsageError("a scope is empty: give a name, a pattern or a path.")
    return scope

"""cli.scope: the options of a scope, and those that do not go together."""

import click
import pytest

from kprobe_exporter.cli.scope import scope_options
from kprobe_exporter.errors import UsageError
from kprobe_exporter.probing.scope import Scope


def given(*words: str) -> Scope:
    @click.command()
    @scope_options()
    @click.option("--other")
    def command(scope: Scope, other: str | None) -> Scope:
        assert other == "x"
        return scope

    found = command.main([*words, "--other", "x"], standalone_mode=False)
    assert isinstance(found, Scope)
    return found


@pytest.mark.parametrize(
    ("words", "scope"),
    [
        ((), Scope()),
        (("-p", "7", "--children"), Scope(pid=7, children=True)),
        (("-L", "7", "--comm", "a"), Scope(tid=7, comm="a")),
        (("-c", "sh -c 'a b'", "--children"), Scope(command=("sh", "-c", "a b"), children=True)),
        (("--uid", "root", "--container", "c", "--pod", "p"), Scope(uid=0, container="c", pod="p")),
        (("--cgroup", "/a", "--uid", "7"), Scope(uid=7, cgroup="/a")),
    ],
)
def test_options(words: tuple[str, ...], scope: Scope) -> None:
    assert given(*words) == scope
    assert scope.narrows == bool(words)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("-p", "7", "-L", "8"), "-p and -L do not go together: each chooses the threads alone."),
        (("-c", "a", "--uid", "0"), "-c and --uid do not go together: each chooses the threads alone."),
        (("-L", "8", "--pod", "a"), "-L and --pod do not go together: each chooses the threads alone."),
        (("--children", "--uid", "0"), "--children is of one process: give -p PID, too."),
        (("-L", "8", "--children"), "--children is of one process: give -p PID, too."),
        (("-c", " "), "-c: the command is empty."),
        (("-c", "a 'b"), '-c "a \'b": No closing quotation (quote as in a shell).'),
        (("--pod", ""), "a scope is empty: give a name, a pattern or a path."),
    ],
)
def test_options_that_do_not_go_together(words: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        given(*words)
    assert str(refused.value) == sentence

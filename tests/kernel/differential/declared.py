"""Draws probes by declared C types at system calls, tracepoints and functions, and programs for them."""

import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.kernel.differential.events import ERRORS, MAX_ERRNO, UNKNOWN, _compares
from tests.kernel.differential.probes import Comparison, Label, Value
from tests.kernel.differential.types import RANGES, read_as

C_TYPES = {
    **dict.fromkeys(("long", "off_t", "loff_t", "ssize_t"), "s64"),
    **dict.fromkeys(("unsigned long", "size_t", "u64", "__u64"), "u64"),
    **dict.fromkeys(("int", "pid_t", "clockid_t", "rwf_t"), "s32"),
    **dict.fromkeys(("unsigned int", "unsigned", "qid_t", "u32", "__u32", "uid_t", "gid_t"), "u32"),
    "umode_t": "u16",
    "short": "s16",
}
"""C's types on 64 bits; a field of another type, as a pointer, is not drawn."""

FIELD = re.compile(r"^\tfield:(.+?) (\w+)(?:\[16\])?;\toffset:", re.MULTILINE)
OTHER = re.compile("common_|__syscall_nr")
OPERATORS = ("==", "!=", "<", "<=", ">", ">=", "&")
MORE_CALLS = ("exit_group", "personality")
"""Calls without a descriptor that are drawn as well: one never returns, and one returns any 32 bits."""
CALLS, RUNS = 6, 2
FILE = -1
"""Stands for the descriptor of a file in which a program may seek."""
RESULTS = [
    *(
        0,
        1,
        4095,
        4096,
        2**31 - 1,
        2**31,
        2**32 - 4096,
        2**32 - 4095,
        2**32 - 22,
        2**32 - 1,
        2**32,
        2**63 - 1,
    ),
    *(2**64 - one for one in (1, 22, 4095, 4096, 2**31, 2**32, 2**63)),
]
"""Registers at the ends of what is an error in some type."""
RETURN_TYPES = ("int", "long", "ssize_t", "s32", "s64", "u32", "u64")
CHILD_FLAGS = (0, 0x200, 0x400, 0x40000, 0x800000, 0x80000000, 0x80000600)
"""Of clone(2): CLONE_FS, CLONE_FILES, CLONE_SYSVSEM, CLONE_UNTRACED and CLONE_IO."""
SIGNALS = (10, 12, 34, 64)
IGNORED = 1
"""TRACE_SIGNAL_IGNORED of include/trace/events/signal.h."""

Step = tuple[str | int, ...]
"""What a program does: the name of a call or of another step, and six numbers."""

KINDS = {
    "enter": 4,
    "exit": 3,
    "syscall": 4,
    "uretprobe": 2,
    "signal:signal_generate": 1,
    "task:task_newtask": 1,
    "task:task_rename": 1,
    "sched:sched_process_exit": 1,
}
"""Kinds of probes, also tracepoints, by how often they are drawn."""


@dataclass(frozen=True)
class Run:
    """One run of a program: its process, the CPU on which it ran, and the results of its steps."""

    pid: int
    cpu: int
    results: Sequence[int]
    parent: bytes
    """The name of the thread that started it."""


@dataclass(frozen=True)
class Drawn:
    """A probe and the steps of its program, whose name only this probe lets pass.

    ``returns`` is the declared type of the return value. A program that ``lingers`` lives long enough for a
    look-up in /proc; it runs on the ``cpu`` with this ``nice`` value.
    """

    name: str
    kind: str
    call: str
    fields: Mapping[str, str]
    returns: str
    condition: tuple[Comparison, ...]
    as_filter: bool
    labels: tuple[Label, ...]
    steps: tuple[Step, ...]
    lingers: bool
    cpu: int
    nice: int

    @property
    def status(self) -> int:
        """The exit status of its program."""
        codes = [int(step[1]) for step in self.steps if step[0] == "exit_group"]
        return codes[0] & 0xFF if codes else 0

    def yaml(self, directory: Path) -> dict[str, object]:
        condition = " && ".join(map(str, self.condition))
        labels = {label.name: label.yaml() for label in self.labels}
        metric: dict[str, object] = {"counter": f"{self.name}_total", "labels": labels}
        attach = {
            "enter": f"tracepoint:syscalls:sys_enter_{self.call}",
            "exit": f"tracepoint:syscalls:sys_exit_{self.call}",
            "syscall": f"syscall:{self.call}",
            "uretprobe": f"uretprobe:{directory / self.name}:made",
        }.get(self.kind, f"tracepoint:{self.kind}")
        written: dict[str, object] = {"name": self.name, "attach": attach, "limit": "none"}
        used = {*(label.field for label in self.labels), *(one.field for one in self.condition)}
        if fetched := used & self.fields.keys() - {"return", "comm", "pid"}:
            written["fetch"] = {one: one for one in sorted(fetched)}
        if self.kind == "uretprobe":
            written["returns"] = self.returns
        if self.as_filter:
            written["filter"] = condition
        else:
            metric["where"] = condition
        return {**written, "metrics": [metric]}

    def expected(self, runs: Sequence[Run]) -> Counter[tuple[str, ...]]:
        found: Counter[tuple[str, ...]] = Counter()
        for run in runs:
            ids = dict.fromkeys(("tid", "pid", "common_pid"), run.pid)
            common: dict[str, Value] = {"comm": self.name.encode(), "cpu": run.cpu, **ids}
            for own in self._events(run):
                values = {**common, **own}
                if all(_compares(one, values[one.field]) for one in self.condition):
                    found[tuple(self._text(label, values[label.field]) for label in self.labels)] += 1
        return found

    def _events(self, run: Run) -> Iterator[Mapping[str, Value]]:
        """Yield the fields that each event of a run has of its own."""
        if self.kind == "sched:sched_process_exit":
            yield {"prio": 120 + self.nice}
        if self.kind == "task:task_rename":
            yield {"oldcomm": run.parent, "newcomm": self.name.encode()}
        name = self.name.encode()
        for (_, *numbers), result in zip(self.steps, run.results, strict=False):
            whole = [int(number) for number in numbers]
            if self.kind == "signal:signal_generate":
                named = zip(("sig", "errno", "code"), whole, strict=False)
                yield {field: read_as(number, "s32") for field, number in named} | {"result": IGNORED}
            elif self.kind == "task:task_newtask":
                yield {"clone_flags": whole[0], "pid": result}
            elif self.kind == "task:task_rename":
                after = b"".join(number.to_bytes(8, "little") for number in whole[:2]).rstrip(b"\0")
                yield {"oldcomm": name, "newcomm": after}
                name = after
            else:
                pairs = zip(whole, self.fields.items(), strict=False)
                values = (
                    {} if self.kind == "exit" else {f: read_as(n, kind or "u64") for n, (f, kind) in pairs}
                )
                yield values | {one: read_as(result, self.returns) for one in ("return", "ret")}

    def _text(self, label: Label, value: Value) -> str:
        if isinstance(value, bytes):
            return value.decode()
        return errno_of(value, self.returns) if label.decode else str(value)


def errno_of(value: int, type_: str) -> str:
    """What the decoder ``errno`` makes of a value: the last 4095 numbers of its type's width are errors."""
    low, high = RANGES[type_]
    wrapped = value if low else value - (high + 1) * (value > high - MAX_ERRNO)
    if -MAX_ERRNO <= wrapped < 0:
        return ERRORS.get(-wrapped, UNKNOWN)
    return "ok" if wrapped >= 0 else UNKNOWN


def events_of(tracefs: Path) -> dict[str, dict[str, str]]:
    """The fields of the system calls that are drawn and of KINDS, with their types; "" for one not drawn.

    The calls have a descriptor as their first argument, so that a wrong one makes them change nothing.
    Calls that the C library's headers do not know yet cannot be made.
    """
    macros = ["cc", "-E", "-dM", "-x", "c", "-include", "sys/syscall.h", os.devnull]
    known = subprocess.run(macros, check=True, capture_output=True, text=True).stdout
    found = {}
    for path in sorted(tracefs.glob("events/syscalls/sys_enter_*/format")):
        call, fields = path.parent.name.removeprefix("sys_enter_"), _fields(path)
        has_descriptor = [*fields][:1] == ["fd"] and len(fields) > 1
        if (has_descriptor or call in MORE_CALLS) and f"SYS_{number(call)} " in known:
            found[call] = fields
    events = [kind for kind in KINDS if ":" in kind]
    return found | {event: _fields(tracefs / f"events/{event.replace(':', '/')}/format") for event in events}


def _fields(path: Path) -> dict[str, str]:
    rows = FIELD.findall(path.read_text())
    return {
        name: "text" if kind == "char" else C_TYPES.get(kind, "")
        for kind, name in rows
        if not OTHER.match(name)
    }


def number(call: str) -> str:
    """What the C library calls a call."""
    return call.removeprefix("new")


def extremes(kind: str) -> list[int]:
    low, high = RANGES[kind or "u64"]
    return sorted({low, low + 1, 0, 1, 7, high - 1, high, -1 % (1 << 64), -10 % (1 << 64), 1 << 31, 1 << 32})


class Drawing:
    """Draws one case. ``ids``: the ids of events are those of getpid(2), so that conditions may have them."""

    def __init__(self, seed: int, known: Mapping[str, Mapping[str, str]], *, ids: bool) -> None:
        self.random, self.known, self.ids = Random(seed), known, ids
        self.name = f"d{seed}"

    def drawn(self) -> Drawn:
        random, fields, returns, call = self.random, {}, "long", ""
        [kind] = random.choices([*KINDS], [*KINDS.values()])
        if ":" in kind:
            fields = {name: type_ for name, type_ in self.known[kind].items() if type_}
            steps = self._steps_of_event(kind)
        elif kind == "uretprobe":
            returns = random.choice(RETURN_TYPES)
            steps = [("made", random.choice(RESULTS), *[0] * 5) for _ in range(CALLS)]
            fields = {"return": returns}
        else:
            calls = [one for one in self.known if ":" not in one and (one, kind) != ("exit_group", "exit")]
            call = random.choice([*sorted(calls), *["lseek", *MORE_CALLS[kind == "exit" :]] * 4])
            fields = {} if kind == "exit" else dict(self.known[call])
            steps = self._steps_of_call(call)
            if kind != "enter" and call != "exit_group":
                fields["ret" if kind == "exit" else "return"] = "long"
        as_filter = random.random() < 0.6
        # The kernel's own filter, of a program's probe and of a call without a return, has another name.
        in_kernel = as_filter and (kind == "uretprobe" or (kind, call) == ("syscall", "exit_group"))
        thread = "common_pid" if in_kernel else "tid"
        condition = [self._own_name(kind), *self._conditions(kind, fields, thread)]
        random.shuffle(condition)
        return Drawn(
            self.name,
            kind,
            call,
            fields,
            returns,
            tuple(condition),
            as_filter,
            self._labels(kind, fields),
            tuple(steps),
            random.random() < 0.2,
            random.choice(sorted(os.sched_getaffinity(0))),
            random.randint(0, 19) if kind == "sched:sched_process_exit" else 0,
        )

    def _own_name(self, kind: str) -> Comparison:
        if kind == "task:task_rename":
            return Comparison(self.random.choice(("oldcomm", "newcomm")), "==", self.name)
        return Comparison("comm", "==", self.name)

    def _drawable(self, kind: str, fields: Mapping[str, str]) -> list[str]:
        """The fields whose values are known: not those of another thread."""
        unknown = {"fd", "oom_score_adj", "group_dead", "group", "pid", "text"}
        return [
            field for field, type_ in fields.items() if type_ not in ("", "text") and field not in unknown
        ]

    def _conditions(self, kind: str, fields: Mapping[str, str], thread: str) -> Iterator[Comparison]:
        random, typed = self.random, self._drawable(kind, fields)
        if typed and random.random() < 0.7:
            field = random.choice(typed)
            low, high = RANGES[fields[field]]
            constants = [one for one in (*extremes(fields[field]), *RESULTS) if low <= one <= high]
            yield Comparison(field, random.choice(OPERATORS), random.choice(constants))
        if random.random() < 0.3:
            operator = random.choice(OPERATORS)
            yield Comparison("cpu", operator, random.choice([*os.sched_getaffinity(0)]))
        if self.ids and random.random() < 0.3:
            yield Comparison(thread, random.choice(OPERATORS), random.choice((0, 1, 2, 4, 1 << 10, 1 << 22)))

    def _labels(self, kind: str, fields: Mapping[str, str]) -> tuple[Label, ...]:
        names = [*self._drawable(kind, fields), "cpu"]
        texts = [field for field, type_ in fields.items() if type_ == "text" and field != "comm"]
        names += texts or ["comm"]
        chosen = self.random.sample(names, self.random.randint(0, min(2, len(names))))
        result = [name for name in names if name in ("return", "ret")]
        chosen += [name for name in result if name not in chosen and self.random.random() < 0.6]
        errors = [name in result and self.random.random() < 0.5 for name in chosen]
        return tuple(Label(f"l_{one}", one, "errno" * as_) for one, as_ in zip(chosen, errors, strict=True))

    def _steps_of_call(self, call: str) -> list[Step]:
        random, kinds = self.random, [*self.known[call].values()]
        if call == "exit_group":
            return [(call, random.choice(extremes("s32")) % (1 << 64), *[0] * 5)]
        if call == "personality":
            values = [random.choice([one for one in RESULTS if one < 2**32]) for _ in range(CALLS)]
            return [(call, one, *[0] * 5) for one in values]
        steps: list[Step] = []
        for _ in range(CALLS):
            if call == "lseek" and random.random() < 0.5:
                steps.append((call, FILE, random.choice(RESULTS), 0, 0, 0, 0))
                continue
            others = [random.choice(extremes(kind)) for kind in kinds[1:]]
            steps.append((call, *(2**32 - 1, *others, *[0] * 6)[:6]))
        return steps

    def _steps_of_event(self, kind: str) -> list[Step]:
        random = self.random
        if kind == "signal:signal_generate":
            errors = [one for one in extremes("s32") if one < 2**31]
            chosen = [
                (random.choice(SIGNALS), random.choice(errors), random.choice(errors)) for _ in range(CALLS)
            ]
            return [("signal", *(one % (1 << 64) for one in each), 0, 0, 0) for each in chosen]
        if kind == "task:task_newtask":
            return [("child", random.choice(CHILD_FLAGS), *[0] * 5) for _ in range(CALLS)]
        if kind == "task:task_rename":
            names = [f"{self.name}{letter * random.randint(1, 8)}"[:15] for letter in "abc"]
            coded = [text.encode().ljust(16, b"\0") for name in names for text in (name, self.name)]
            return [
                ("rename", *(int.from_bytes(t[at : at + 8], "little") for at in (0, 8)), *[0] * 4)
                for t in coded
            ]
        return []

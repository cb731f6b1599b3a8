"""Ends the open calls of threads that exit or execute another program."""

from collections.abc import Callable, Collection

from kprobe_exporter.aggregate.open_calls import Key, OpenCalls
from kprobe_exporter.model.records import Join

CLONE_VM, CLONE_VFORK = 0x100, 0x4000  # include/uapi/linux/sched.h

MOST_KEYS = 65_536
"""Keys of user-space calls that are remembered; beyond it, those without an open call are forgotten."""

Note = Callable[[int, Key], None]
"""Remembers that a thread opened a call of a program's function under this key."""


class EndedThreads:
    """Drops the open first halves that can have no second half any more. The pairing owns it.

    - A thread's calls end with it. They are searched once a batch, at about 0.1 µs an open call: until then,
      a call that began after the exit is told apart by its time.
    - An exec ends the calls of the program's functions, and not those in the kernel. A thread that is not its
      process' leader gets the leader's id (de_thread() in fs/exec.c), and its calls in the kernel with it.
    - A fork copies the pending returns of the program's functions to the child (dup_utask() in
      kernel/events/uprobes.c). The child made none of these calls, so its returns from them are not counted.
    - A new thread has no calls of its own: what is open under its id is of a thread whose exit was not seen.
    """

    def __init__(self, opened: OpenCalls) -> None:
        self._opened = opened
        self._index: dict[int, int] = {}  # where in the keys of a join the thread is, by layout_id
        self._user: set[int] = set()
        self._keys: dict[int, set[Key]] = {}
        self._number = 0
        self._ended: dict[int, int] = {}  # when a thread ended, for those that were not searched for yet

    def add(self, join: Join) -> Note | None:
        """Follow the threads of a join; return what to call at each of its user-space calls, if any."""
        layout_id = join.layout.layout_id
        if join.by == "stack":
            self._index[layout_id] = 1
            if join.begins[0].user:
                self._user.add(layout_id)
                return self._note
        elif "tid" in join.key and all(begin.place("tid") is None for begin in join.begins):
            self._index[layout_id] = 1 + join.key.index("tid")
        return None

    def remove(self, join: Join) -> None:
        """Undo ``add``. None of the join's calls may be open."""
        self._index.pop(join.layout.layout_id, None)
        self._user.discard(join.layout.layout_id)

    def exited(self, tid: int, time: int) -> None:
        """End the calls of a thread that began before it exited."""
        self._keys.pop(tid, None)
        self._ended[tid] = time

    def started(self, parent: int, child: int, clone_flags: int, time: int) -> None:
        """Begin with a new thread: no calls, or copies of its parent's user-space calls after a fork."""
        if child in self._ended:
            self.apply()
        self._ended[child] = time - 1  # the copies below began at this time, and stay
        if clone_flags & (CLONE_VM | CLONE_VFORK) == CLONE_VM or parent == child:
            return
        for key in tuple(self._keys.get(parent, ())):
            layout_id, _, region = key
            if self._opened.inherit(key, (layout_id, child, region), time):
                self._note(child, (layout_id, child, region))
        self._opened.trim()

    def executed(self, old: int, tid: int) -> None:
        """End a program's calls; ``old`` is the id that the thread had before it became ``tid``."""
        lists = self._opened.lists
        for key in self._keys.pop(old, ()):
            if key in lists:
                self._opened.drop(key)
        if old == tid:
            return
        self.apply()  # the exit of the former leader, whose id this is
        for key, place in self._keys_of((old,)):
            self._opened.rename(key, (*key[:place], tid, *key[place + 1 :]))

    def apply(self) -> None:
        """Drop the calls of all threads that ended."""
        ended, self._ended = self._ended, {}
        for key, place in self._keys_of(ended):
            self._opened.drop_until(key, ended[key[place]])

    def _keys_of(self, threads: Collection[int]) -> list[tuple[Key, int]]:
        """Return the keys of these threads' open calls, each with the index of the thread in it."""
        index = self._index
        keys = self._opened.lists if threads else ()
        return [(key, index[key[0]]) for key in keys if key[0] in index and key[index[key[0]]] in threads]

    def _note(self, tid: int, key: Key) -> None:
        keys = self._keys.setdefault(tid, set())
        if key in keys:
            return
        keys.add(key)
        self._number += 1
        if self._number > MOST_KEYS:
            self._keys = {}
            for open_key in [key for key in self._opened.lists if key[0] in self._user]:
                self._keys.setdefault(open_key[1], set()).add(open_key)
            self._number = sum(map(len, self._keys.values())) // 2  # leaves room until it is done again

"""An instance is held by one agent, is set up before it records, and is removed completely."""

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from kprobe_exporter.errors import InstanceBusy, TracefsError
from kprobe_exporter.model.records import Layout
from kprobe_exporter.source.lines import LineParser
from kprobe_exporter.tracefs.instance import Instance
from kprobe_exporter.tracefs.ownership import mark
from tests.contract.conftest import Kernel
from tests.support.leftovers import list_probes

NAME = "contract_test"


def abandon(instance: Instance) -> None:
    """Release the lock and leave everything else, as SIGKILL does."""
    assert instance._lock is not None
    os.close(instance._lock)
    instance._lock = None


def test_it_is_there_while_held_and_gone_after(kernel: Kernel) -> None:
    with Instance.acquire(kernel.files, NAME) as instance:
        assert NAME in kernel.files.names("instances")
        instance.set_up(64, record_tgid=True)
        instance.close()
        assert NAME not in kernel.files.names("instances")
    instance.close()


def test_a_held_one_is_not_taken(kernel: Kernel) -> None:
    with Instance.acquire(kernel.files, NAME):
        with pytest.raises(InstanceBusy, match="another live agent holds the tracefs instance"):
            Instance.acquire(kernel.files, NAME)
        assert NAME in kernel.files.names("instances")


def test_an_abandoned_one_is_reclaimed_with_its_probes(kernel: Kernel) -> None:
    killed = Instance.acquire(kernel.files, NAME)
    killed.set_up(64, record_tgid=False)
    kernel.files.write("kprobe_events", f"p:{NAME}/left {kernel.symbol}")
    kernel.files.write("kprobe_events", f"p:foreign_group/left {kernel.symbol}")
    killed.write(f"events/{NAME}/left/enable", "1")
    kernel.call()
    abandon(killed)
    try:
        with Instance.acquire(kernel.files, NAME) as successor:
            assert [d.group for d in list_probes(kernel.files) if d.event == "left"] == ["foreign_group"]
            pipe = successor.open_pipe()
            with pytest.raises(BlockingIOError):
                os.read(pipe, 100)
            os.close(pipe)
    finally:
        kernel.files.write("kprobe_events", "-:foreign_group/left")


@pytest.mark.parametrize("without", [False, True])
def test_instance_of_threads_goes_with_the_first(kernel: Kernel, without: bool) -> None:
    second = f"{NAME}.threads"
    for _ in range(2):
        killed = Instance.acquire(kernel.files, NAME)
        killed.set_up(64, record_tgid=False)
        made = killed.open_threads()
        assert (made.name, killed.open_threads()) == (second, made)
        assert second in kernel.files.names("instances")
        for pipe in made.pipes.values():
            os.close(pipe)
        abandon(killed)
        if without:
            kernel.files.rmdir(f"instances/{NAME}")
    with Instance.acquire(kernel.files, NAME) as successor:
        assert second not in kernel.files.names("instances")
        successor.set_up(64, record_tgid=False)
        for pipe in successor.open_threads().pipes.values():
            os.close(pipe)
    assert second not in kernel.files.names("instances")


def test_foreign_instance_in_the_place_of_the_second(kernel: Kernel) -> None:
    kernel.files.mkdir(f"instances/{NAME}.threads")
    try:
        with pytest.raises(TracefsError, match=r"not marked as made by .* it holds instances/\w+\.threads"):
            Instance.acquire(kernel.files, NAME)
        assert f"{NAME}.threads" in kernel.files.names("instances")
    finally:
        kernel.files.rmdir(f"instances/{NAME}.threads")


def test_definitions_left_without_an_instance_go_too(kernel: Kernel) -> None:
    mark(kernel.files, NAME)
    kernel.files.write("kprobe_events", f"p:{NAME}/left {kernel.symbol}")
    with Instance.acquire(kernel.files, NAME):
        assert not [d for d in list_probes(kernel.files) if d.group == NAME]


def test_an_abandoned_instance_that_is_read_is_reported(kernel: Kernel) -> None:
    killed = Instance.acquire(kernel.files, NAME)
    pipe = killed.open_pipe()
    abandon(killed)
    with pytest.raises(TracefsError, match=r"another process has a file in it open \(EBUSY\)"):
        Instance.acquire(kernel.files, NAME)
    os.close(pipe)
    Instance.acquire(kernel.files, NAME).close()


def test_a_second_reader_is_told(kernel: Kernel) -> None:
    with Instance.acquire(kernel.files, NAME) as instance:
        pipe = instance.open_pipe()
        try:
            os.close(instance.open_pipe())  # before 6.6 a second reader takes events from the first
        except TracefsError as error:
            told = str(error)
        else:
            told = instance.cannot_read(OSError(errno.EBUSY, "busy"))
        os.close(pipe)
    assert "another process is reading" in told


def test_own_threads_are_kept_out_and_those_they_start(kernel: Kernel) -> None:
    """The thread that sets up leaves no event; a thread that was started earlier leaves one."""
    with Instance.acquire(kernel.files, NAME) as instance, ThreadPoolExecutor(1) as others:
        foreign = others.submit(threading.get_native_id).result()  # started earlier, so not excluded
        instance.set_up(64, record_tgid=False)
        assert instance.exclude_own_threads()
        kernel.files.write(
            "kprobe_events", f"r:{NAME}/open {kernel.fails} return=$retval:s64 comm=$comm:string"
        )
        instance.write(f"events/{NAME}/open/enable", "1")
        kernel.fail()
        others.submit(kernel.fail).result()
        instance.write(f"events/{NAME}/open/enable", "0")
        pipe = instance.open_pipe()
        layout = Layout(0, "open", "open", "return", kernel.fails)
        text = os.read(pipe, 65536)
        os.close(pipe)
        assert text.count(b"\n") == 1
        assert f"-{foreign}".encode() in text
        assert LineParser([layout]).feed(text).unparsed == 1  # the event has arguments that this layout lacks

"""short_turns: the interpreter's settings change while items are exported, and are restored afterwards."""

import gc
import sys

import pytest

from kprobe_exporter.export.otlp.gil_tuning import TURN, short_turns


@pytest.mark.parametrize(("before", "meanwhile"), [(0.005, TURN), (TURN / 2, TURN / 2)])
def test_turns_get_no_longer(monkeypatch: pytest.MonkeyPatch, before: float, meanwhile: float) -> None:
    monkeypatch.setattr(sys, "getswitchinterval", lambda: before)
    found: list[float] = []
    monkeypatch.setattr(sys, "setswitchinterval", found.append)
    with short_turns():
        assert gc.get_freeze_count() > 0
    assert found == [meanwhile, before]
    assert gc.get_freeze_count() == 0


def test_as_before_after_an_error() -> None:
    before = sys.getswitchinterval()
    with pytest.raises(KeyError), short_turns():
        raise KeyError
    assert sys.getswitchinterval() == before
    assert gc.get_freeze_count() == 0

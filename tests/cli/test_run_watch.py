"""The bar of a whole run: it never goes back, and says how long it will take."""

from __future__ import annotations

import time

import pytest

from wireyard.cli import run


def test_one_bar_is_for_the_whole_run(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with run._Watch(quiet=True) as watch:
        task = watch._progress.tasks[0]
        reached = []
        for name, part in (
            ("starting Spark", 0),
            ("reading headers of captures", 0),
            ("reading", 0),
            ("reading", 0.5),
            ("reading again where a packet lay in another", 0),
            ("writing tables", 0),
        ):
            now[0] += 10
            if part:
                watch.at(int(part * 100), 100)
                assert task.fields["left"] == "about 60 s left"
                assert task.fields["bytes"] == "50 B of 100 B"
            else:
                watch.stage(name)
            assert task.description == name
            reached.append(task.completed)
        assert task.total == 100 and watch._progress.tasks == [task]
    assert reached == [0, 10, 15, 40, 40, 65]

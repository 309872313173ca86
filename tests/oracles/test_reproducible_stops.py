"""A reproducible run that is stopped equals the serial run of as many periods, whatever stopped it, and when."""

import functools
import os
import signal

import pytest
from support.stand_in import StandIn
from test_lockstep import fingerprint

from motet.training.run import train
from motet.training.settings import Settings
from motet.worlds import MatrixGame

MATRIX = functools.partial(MatrixGame, turns=23)


def settings(engine, **more):
    return Settings(engine=engine, steps=10**7, updates_per_step=0.5, worlds_per_actor=2, actors=2, period=15, **more)


def by_callback(snapshot):
    return snapshot.steps == 0


def by_interrupt(snapshot):
    if snapshot.steps:
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("stop", [None, by_callback, by_interrupt], ids=["seconds", "callback", "interrupt"])
def test_a_stopped_run_is_the_serial_run_of_as_many_periods(stop, monkeypatch, no_leaks):
    said, told = [], []

    def once(snapshot):
        if stop is not None and snapshot.steps and not told:
            told.append(snapshot)
            return stop(snapshot)
        return None

    chosen = settings("processes", seconds=0.5 if stop is None else None, metrics_every_s=0.1)
    result = train(MATRIX, StandIn(), chosen, on_message=said.append, on_update=once)
    (line,) = [line for line in said if "stopping after period" in line]
    periods = int(line.split()[3].strip(","))
    assert result.state == "stopped" and result.restarts == 0 and result.steps > 0
    ends = iter([False] * (periods - 1))
    monkeypatch.setattr("motet.training.recorder.Recorder.over", lambda recorder: next(ends, True))
    serial = train(MATRIX, StandIn(), settings("serial"))
    assert (serial.steps, serial.updates, fingerprint(serial)) == (result.steps, result.updates, fingerprint(result))

"""Callbacks may raise: the run ends cleanly with a checkpoint, and the user gets the traceback."""

import functools
import json
import traceback

import numpy as np
import pytest
from support.stand_in import StandIn

from motet.errors import ChildError, MotetError
from motet.runs.directory import RunDirectory
from motet.training import recorder
from motet.training.callbacks import StopRun
from motet.training.run import resume, train
from motet.training.settings import Settings
from motet.worlds import MatrixGame

pytestmark = pytest.mark.usefixtures("no_leaks")
WORLD = functools.partial(MatrixGame, turns=10)
ENGINES = ["serial", "processes"]


class ChartError(Exception):
    """As a plotting library raises it."""


def draw_chart(snapshot):
    raise ChartError(f"no axis for {snapshot.steps} steps")


def log_to_nowhere(line):
    raise OSError("the log is gone")


def settings(engine, **more):
    return Settings(engine=engine, updates_per_step=0.1, slack=None if engine == "serial" else 8, **more)


def state_of(run):
    return json.loads((run / "status.json").read_text())["state"]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_watch_that_raises_ends_the_run_in_order(engine, tmp_path):
    run, said = tmp_path / "run", []
    with pytest.raises(ChartError, match="no axis for") as caught:
        train(WORLD, StandIn(), settings(engine, steps=10**9), run=run, on_update=draw_chart, on_message=said.append)
    text = "".join(traceback.format_exception(caught.value))
    assert "in draw_chart" in text
    assert f"motet resume {run}" in text
    assert any("on_update raised ChartError: no axis for" in line for line in said)
    (step,) = RunDirectory(run).steps()
    assert step > 0 and state_of(run) == "failed"
    again = resume(run, steps=100, world=WORLD, algorithm=StandIn())
    assert again.state == "done" and again.steps == step + 100


@pytest.mark.parametrize("engine", ENGINES)
def test_a_watch_that_raises_at_the_very_end_loses_nothing(engine, tmp_path):
    def watch(snapshot):
        if snapshot.state == "done":
            draw_chart(snapshot)

    with pytest.raises(ChartError):
        train(WORLD, StandIn(), settings(engine, steps=200), run=tmp_path / "run", on_update=watch)
    assert RunDirectory(tmp_path / "run").steps()[-1] == 200 and state_of(tmp_path / "run") == "done"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_watch_that_raises_without_a_run_directory_is_passed_on(engine):
    with pytest.raises(ChartError) as caught:
        train(WORLD, StandIn(), settings(engine, steps=10**9), on_update=draw_chart)
    assert "motet resume" not in "".join(traceback.format_exception(caught.value))


def stop(snapshot):
    raise StopRun("solved")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("on_update", [stop, lambda snapshot: False, lambda snapshot: np.bool_(False)])
def test_a_callback_may_stop_the_run(engine, on_update, tmp_path):
    run, said = tmp_path / "run", []
    more = {"run": run, "on_update": on_update, "on_message": said.append}
    result = train(WORLD, StandIn(), settings(engine, steps=10**9, metrics_every_s=0.01), **more)
    assert result.state == "stopped" == state_of(run) and not result.interrupted
    assert RunDirectory(run).steps() == [result.steps]
    assert said.count(f"on_update stopped the run{': solved' if on_update is stop else ''}") == 1


def test_a_message_may_stop_the_run():
    told = []

    def on_message(line):
        told.append(line)
        raise StopRun

    def on_update(snapshot):
        if len(told) == 0 and snapshot.steps:
            raise StopRun("first")
        return 0  # not False

    result = train(WORLD, StandIn(), settings("serial", steps=10**9, metrics_every_s=0.01), on_update=on_update,
                   on_message=on_message)  # fmt: skip
    assert result.state == "stopped" and told == ["on_update stopped the run: first"]
    assert train(WORLD, StandIn(), settings("serial", steps=20), on_update=lambda snapshot: 0).state == "done"


def test_metrics_are_written_as_often_as_asked_for(tmp_path):
    clock = iter(range(10**9))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorder.time, "monotonic", lambda: float(next(clock)))  # every look at the clock is a second
        for every, few, many in ((5.0, 10, 10**4), (10.0**6, 0, 1)):
            run = tmp_path / str(every)
            train(WORLD, StandIn(), settings("serial", steps=200, metrics_every_s=every), run=run)
            assert few <= len((run / "metrics.jsonl").read_text().splitlines()) <= many


def test_a_watch_that_leaves_with_sys_exit_leaves_a_checkpoint(tmp_path):
    def watch(snapshot):
        raise SystemExit(7)

    with pytest.raises(SystemExit) as caught:
        train(WORLD, StandIn(), settings("serial", steps=10**9), run=tmp_path / "run", on_update=watch)
    assert caught.value.code == 7 and RunDirectory(tmp_path / "run").steps()


def test_a_say_that_raises_ends_the_run_in_order(tmp_path):
    """It is said that learning became nonsense."""

    class Nonsense(StandIn().build(None, WORLD().action_space("player_0"), 1, [0]).__class__):
        def update(self, batch, steps):
            update = super().update(batch, steps)
            update.metrics["loss"][:] = float("nan")
            return update

    class Config(StandIn):
        def build(self, observation_space, action_space, agents, seeds, device="cpu"):
            return Nonsense(self, agents, seeds)

    with pytest.raises(OSError, match="the log is gone"):
        train(WORLD, Config(), settings("serial", steps=10**9), run=tmp_path / "run", on_message=log_to_nowhere)
    assert RunDirectory(tmp_path / "run").steps()


def test_a_watch_that_raises_while_a_failed_run_ends_does_not_hide_why_it_failed(tmp_path):
    def watch(snapshot):
        if snapshot.state == "failed":
            draw_chart(snapshot)

    def broken():
        world, step, taken = MatrixGame(turns=10), MatrixGame.step, []
        world.step = lambda actions: step(world, actions) if taken.append(0) or len(taken) < 50 else 1 / 0
        return world

    with pytest.raises((ChildError, MotetError), match="ZeroDivisionError") as caught:
        train(broken, StandIn(), settings("processes", steps=10**6), run=tmp_path / "run", on_update=watch)
    assert "on_update raised ChartError" in "".join(traceback.format_exception(caught.value))

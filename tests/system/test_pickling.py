"""What cannot be pickled is named, with its part and a way out: worlds, policies and algorithms of users."""

import functools
import multiprocessing
import pickle
import sqlite3
import threading
from dataclasses import dataclass, field
from typing import Any

import pytest
from support.stand_in import StandIn

import motet
from motet.errors import UnpicklableError
from motet.isolation.policy import IsolatedPolicy
from motet.policy import PolicySpec
from motet.system.pickling import unpicklable_part
from motet.training.run import train
from motet.training.settings import Settings
from motet.worlds import MatrixGame


class Simulator:
    """Holds what such things hold: a lock, and a connection."""

    def __init__(self):
        self.lock = threading.Lock()
        self.scores = {"runs": sqlite3.connect(":memory:")}


class Builder:
    def __init__(self):
        self.parts = {"simulator": Simulator()}

    def __call__(self):
        return MatrixGame(turns=10)

    make = __call__


def build(simulator):
    return MatrixGame(turns=10)


def closure():
    simulator = Simulator()
    return lambda: build(simulator)


@dataclass
class Model:
    layers: list = field(default_factory=lambda: [1.0, Simulator()])


class Player:
    def __init__(self):
        self.model = Model()

    def reset(self, seed):
        pass

    def act(self, observation, mask=None):
        return 0


WORLDS = [
    (Builder, "world.parts['simulator'].lock"),
    (lambda: Builder().make, "world.__self__.parts['simulator'].lock"),
    (lambda: functools.partial(build, Simulator()), "world.args[0].lock"),
    (lambda: functools.partial(build, simulator=Simulator()), "world.keywords['simulator'].lock"),
    (closure, "world.__closure__['simulator'].lock"),
]


# ---- finding the part


class Slotted:
    __slots__ = ("lock",)

    def __init__(self):
        self.lock = threading.Lock()


class OwnState:
    """Says itself what of it is kept."""

    def __init__(self, kept):
        self.lock, self.kept = threading.Lock(), kept

    def __getstate__(self):
        return {"kept": self.kept}


class Raises:
    def __reduce_ex__(self, protocol):
        raise RuntimeError("I stay here")


class Looped:
    def __init__(self):
        self.own, self.lock = self, threading.Lock()


class Round:
    """Its first part leads back to it; the last one is what fails."""

    def __init__(self):
        self.generator = Member(self)
        self.lock = threading.Lock()


class Member:
    def __init__(self, whole):
        self.whole, self.others = whole, [whole]


def by_default(lock=threading.Lock(), *, other=1):  # noqa: B008 - as users write it
    return lock, other


def local_class():
    lock = threading.Lock()

    class Local:
        def locked(self):
            return lock

    return Local()


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (threading.Lock(), "thing"),
        ([1, {"a": (2, threading.Lock())}], "thing[1]['a'][1]"),
        ({threading.Lock(): 1}, "thing.keys()[0]"),
        (Slotted(), "thing.lock"),
        (OwnState(Simulator()), "thing.kept.lock"),
        (Raises(), "thing"),
        (Looped(), "thing.lock"),
        (Round(), "thing.lock"),
        ([1, Round()], "thing[1].lock"),
        (local_class(), "thing.__class__.locked.__closure__['lock']"),
        ((yes for yes in "generator"), "thing"),
    ],
)
def test_innermost_part_is_found(value, path):
    found, error = unpicklable_part(value, "thing")
    assert found == path
    assert isinstance(error, Exception)


def test_default_argument_is_found():
    here = functools.partial(by_default)
    here.func.__module__ = "__main__"  # so that it travels by value
    try:
        assert unpicklable_part(here, "thing")[0] == "thing.func.__defaults__[0]"
    finally:
        by_default.__module__ = __name__


def test_objects_that_can_be_pickled_have_no_faulty_part():
    assert unpicklable_part({"a": [1, lambda: 2]}, "thing") is None
    assert unpicklable_part(OwnState(1), "thing") is None


def test_search_ends():
    """Many parts, deep ones, and one that grows while it is searched."""

    class Endless:
        def __getstate__(self):
            return {"next": Endless(), "lock": threading.Lock()}

    assert unpicklable_part([Endless()] * 50, "thing")[0].startswith("thing[0]")
    deep: Any = threading.Lock()
    for _ in range(5000):
        deep = [deep]
    assert unpicklable_part(deep, "thing")[0].startswith("thing[0]")
    assert unpicklable_part([*range(100_000), threading.Lock()], "thing")[0].startswith("thing")


# ---- train


@pytest.mark.parametrize(("make", "path"), WORLDS)
def test_train_names_the_part_of_a_world_factory_and_the_way_out(make, path, tmp_path, no_leaks):
    with pytest.raises(UnpicklableError) as caught:
        train(make(), StandIn(), Settings(steps=50), run=tmp_path / "run")
    said = str(caught.value)
    assert said.startswith(f"world must be picklable to be sent to another process, but {path} is not: ")
    assert "cannot pickle '_thread.lock' object" in said
    assert "engine='serial'" in said and "fall_back=True" in said
    assert list(tmp_path.iterdir()) == []


def test_serial_engine_and_fall_back_play_such_a_world(tmp_path, no_leaks):
    alone = Settings(steps=60, engine="serial", updates_per_step=0.5)
    serial = train(Builder(), StandIn(), alone, run=tmp_path / "serial")
    said = []
    settings = Settings(steps=60, fall_back=True, updates_per_step=0.5, evaluate_every=20)
    result = train(Builder(), StandIn(), settings, run=tmp_path / "run", on_message=said.append)
    assert result.state == serial.state == "done"
    assert "world.parts['simulator'].lock" in result.fell_back
    assert any(line.startswith("NO PROCESSES: world must be picklable") and "fall_back" in line for line in said)
    for name, agent in serial.agents.items():
        assert agent["state"].tobytes() == result.agents[name]["state"].tobytes()


def test_train_names_an_algorithm_that_cannot_be_pickled():
    @dataclass(frozen=True)
    class Locked(StandIn):
        lock: Any = field(default_factory=threading.Lock)

    Locked.__qualname__ = "Locked"
    globals()["Locked"] = Locked  # importable, so that the lock alone is at fault
    try:
        with pytest.raises(UnpicklableError, match=r"algorithm of player_0 .*, but algorithm\.lock is not: .*serial"):
            train(functools.partial(MatrixGame, turns=10), Locked(), Settings(steps=50))
    finally:
        del globals()["Locked"]


def test_locks_of_multiprocessing_still_reach_the_children(no_leaks):
    """They can be pickled while a child is started, and only then."""
    made = multiprocessing.get_context("spawn").Semaphore(10)

    def counted():
        made.acquire(timeout=10)
        return MatrixGame(turns=10)

    assert train(counted, StandIn(), Settings(steps=20, updates_per_step=0.5)).state == "done"
    assert made.get_value() < 9  # one was taken here, to look at the world, and one in the actor


# ---- evaluate


def test_evaluate_names_the_part_of_a_policy_and_the_way_out():
    with pytest.raises(UnpicklableError) as caught:
        motet.evaluate("matrix", Player(), episodes=1)
    said = str(caught.value)
    assert said.startswith(
        "policy Player must be picklable to be sent to another process, but policy.model.layers[1].lock"
    )
    assert "a function that makes it" in said and "module:function" in said


@pytest.mark.parametrize("isolate", [False, True])
def test_evaluate_names_the_part_of_what_makes_a_policy(isolate):
    simulator = Simulator()
    for given, path in (
        (lambda: simulator and Player(), r"policy\.factory\.__closure__\['simulator'\]\.lock"),
        (PolicySpec(Player, {"model": simulator}, name="mine"), r"policy\.arguments\['model'\]\.lock"),
    ):
        with pytest.raises(UnpicklableError, match=rf"policy .* must be picklable .*but {path} is not"):
            motet.evaluate("matrix", [given, "random"], episodes=1, isolate=isolate)


@pytest.mark.parametrize(("make", "path"), WORLDS)
def test_evaluate_names_the_part_of_a_world_factory(make, path):
    with pytest.raises(UnpicklableError) as caught:
        motet.evaluate(make(), "random", episodes=1)
    assert f"but {path} is not: " in str(caught.value)
    assert "a function that makes it" in str(caught.value)


def test_tournament_names_it_too():
    with pytest.raises(UnpicklableError, match=r"policy Player .*policy\.model\.layers\[1\]\.lock"):
        motet.tournament("matrix", [Player(), "random"])


def test_isolated_policy_names_it_too():
    world = MatrixGame()
    agent = world.possible_agents[0]
    spec = PolicySpec(Player, {"model": Simulator()})
    with pytest.raises(UnpicklableError, match=r"policy Player .*policy\.arguments\['model'\]\.lock is not"):
        IsolatedPolicy(spec, world.observation_space(agent), world.action_space(agent))


def test_the_error_itself_travels():
    error = pickle.loads(pickle.dumps(UnpicklableError("world must be picklable")))  # noqa: S301 - our own
    assert str(error) == "world must be picklable" and isinstance(error, TypeError)

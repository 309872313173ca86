"""The limit of an actor's lag: no actor acts with an older version, and forced loads are counted."""

import os
import signal
import threading

import numpy as np
import pytest
from support.stand_in import StandIn

from motet.errors import SettingError, WaitTimeoutError
from motet.publication import Publication, Subscriber
from motet.training.roster import make_roster
from motet.training.run import train
from motet.training.serial import Serial
from motet.training.settings import Settings
from motet.training.shared import SharedMemory
from motet.worlds import MatrixGame


def lags(**settings):
    """How far each agent was behind whenever it acted, [versions, steps], and how often each was forced."""
    options = {"engine": "serial", "steps": 300, "publish_every": 1, **settings}
    shared = SharedMemory(make_roster(MatrixGame, StandIn(), Settings(**options)))
    serial = Serial(shared)
    policies, found = serial.actors[0].published, []
    acted = [policy.behaviour.act for policy in policies]

    def watched(i):
        def act(*arguments):
            held = policies[i].subscriber
            found.append((held.lag_versions, policies[i].newest_step() - held["published_step"]))
            return acted[i](*arguments)

        return act

    for i, policy in enumerate(policies):
        policy.behaviour.act = watched(i)
    serial.play(lambda: False)
    return np.array(found), [policy.subscriber.forced for policy in policies]


def test_without_a_limit_an_actor_is_as_late_as_its_interval():
    found, forced = lags(sync_interval=40)
    assert found.max(0).tolist() == [39, 39]
    assert forced == [0, 0]


@pytest.mark.parametrize("limit", [0, 3, 12])
@pytest.mark.parametrize("measure", ["versions", "steps"])
def test_no_actor_acts_with_a_version_older_than_the_limit(measure, limit):
    found, forced = lags(sync_interval=40, **{f"max_lag_{measure}": limit})
    assert found.max(0)[("versions", "steps").index(measure)] == limit
    assert min(forced) > 300 // (limit + 1) // 2


def test_the_narrower_of_two_limits_holds():
    """A version every third step or so."""
    rare = {"sync_interval": 40, "publish_every": 3}
    found, _ = lags(**rare, max_lag_versions=5, max_lag_steps=4)
    assert found[:, 0].max() < 5
    assert found[:, 1].max() <= 4
    found, _ = lags(**rare, max_lag_versions=5, max_lag_steps=100)
    assert found[:, 0].max() == 5
    assert 4 < found[:, 1].max() < 100


@pytest.mark.parametrize("measure", ["versions", "steps"])
def test_an_actor_that_checks_every_round_is_never_forced_to_load(measure):
    found, forced = lags(sync_interval=1, **{f"max_lag_{measure}": 0})
    assert found.max() == 0
    assert forced == [0, 0]


@pytest.mark.parametrize("measure", ["versions", "steps"])
def test_forced_refreshes_are_shown(measure):
    seen = []
    settings = Settings(
        steps=1500, updates_per_step=1.0, publish_every=1, sync_interval=10**6, **{f"max_lag_{measure}": 5}
    )
    train(MatrixGame, StandIn(), settings, on_update=lambda snapshot: seen.append(snapshot.agents[0]))
    assert seen[-1].forced > 10


def test_a_restarted_actor_begins_with_the_newest_version_for_any_interval(no_leaks):
    killed, versions = [], []

    def look(snapshot):
        (actor,) = [row for row in snapshot.processes if row.name == "actor-0"]
        versions.append(snapshot.agents[0].lag_versions)
        if not killed and actor.pid and snapshot.steps > 100:
            os.kill(actor.pid, signal.SIGKILL)
            killed.append(actor.pid)

    settings = Settings(steps=30_000, updates_per_step=0.5, sync_interval=10**6)
    result = train(MatrixGame, StandIn(), settings, on_update=look)
    assert (result.state, result.restarts) == ("done", len(killed))
    assert killed


@pytest.mark.parametrize("slots", [1, 2])
def test_a_subscriber_that_insists_catches_up_with_a_publisher_at_full_speed(slots):
    publication = Publication(weights=100_000, slots=slots)
    publisher, subscriber = publication.publisher(), publication.subscriber()
    weights, stop = np.zeros(100_000, np.float32), threading.Event()

    def write():
        while not stop.is_set():
            weights[:] = publisher.newest + 1
            publisher.publish(weights)

    for version in range(1, 11):
        publisher.publish(np.full_like(weights, version))
    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(50):
            before = subscriber.version
            if subscriber.catch_up(2, timeout_s=30):
                assert subscriber.version > before
            assert (subscriber.weights == subscriber.version).all()
    finally:
        stop.set()
        writer.join()
    assert subscriber.forced >= 1


class Unreadable:
    """A subscriber that always meets a write."""

    version, newest, forced, waited_s = 1, 9, 0, 0.0
    take, catch_up = Subscriber.take, Subscriber.catch_up

    def refresh(self):
        return False


def test_a_publication_that_can_never_be_read_is_an_error_that_names_it():
    with pytest.raises(WaitTimeoutError, match=r"holds version 1 and could not read version 9.*0\.05 s"):
        Unreadable().catch_up(2, timeout_s=0.05)


@pytest.mark.parametrize("measure", ["versions", "steps"])
def test_a_limit_below_zero_is_refused(measure):
    with pytest.raises(SettingError, match=f"max_lag_{measure} must be an int >= 0 or None, got -1"):
        Settings(**{f"max_lag_{measure}": -1})


class Rival(StandIn):
    header = {"published_step": ((), "int64")}  # noqa: RUF012


def test_the_name_of_what_is_in_every_publication_is_taken():
    with pytest.raises(
        SettingError, match="header must not contain 'published_step', which every publication already has"
    ):
        train(MatrixGame, Rival(), Settings(steps=10))

"""The limit of an actor's lag: nobody acts with a version that is older, and who had to hurry is counted."""

import threading

import numpy as np
import pytest
from stand_in import StandIn

from motet._engine import Handles
from motet._serial import Serial
from motet.errors import SettingError, WaitTimeoutError
from motet.publication import Publication, Subscriber
from motet.train import Settings, _roster, train
from motet.worlds import MatrixGame


def lags(**settings):
    """How far each agent was behind at the end of each round, and the run's handles."""
    options = {"engine": "serial", "steps": 300, "publish_every": 1, **settings}
    handles = Handles(_roster(MatrixGame, StandIn(), Settings(**options)))
    serial = Serial(handles)
    seats, found = serial._actors[0].seats, []
    acted = [seat.behaviour.act for seat in seats]

    def watched(i):
        def act(*arguments):
            found.append(seats[i].subscriber.lag_versions)
            return acted[i](*arguments)

        return act

    for i, seat in enumerate(seats):
        seat.behaviour.act = watched(i)
    serial.play(lambda: False)
    return np.array(found), [seat.subscriber.forced for seat in seats]


def test_without_a_limit_an_actor_is_as_late_as_its_interval():
    found, forced = lags(sync_interval=40)
    assert found.max() == 39
    assert forced == [0, 0]


@pytest.mark.parametrize("limit", [0, 3, 12])
def test_nobody_acts_with_a_version_older_than_the_limit(limit):
    found, forced = lags(sync_interval=40, max_lag_versions=limit)
    assert found.max() == limit
    assert min(forced) > 300 // (limit + 1) // 2


def test_who_looks_every_round_is_never_forced():
    found, forced = lags(sync_interval=1, max_lag_versions=0)
    assert found.max() == 0
    assert forced == [0, 0]


def test_forced_refreshes_are_shown():
    seen = []
    settings = Settings(steps=1500, updates_per_step=1.0, publish_every=1, sync_interval=10**6, max_lag_versions=5)
    train(MatrixGame, StandIn(), settings, watch=lambda snapshot: seen.append(snapshot.agents[0]))
    assert seen[-1].forced > 10


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

    version, newest, lag_versions, forced = 1, 9, 8, 0

    def refresh(self):
        return False


def test_what_can_never_be_read_ends_with_a_name():
    with pytest.raises(WaitTimeoutError, match=r"8 versions behind, at most 2 are allowed.*0\.05 s"):
        Subscriber.catch_up(Unreadable(), 2, timeout_s=0.05)


def test_a_limit_below_zero_is_refused():
    with pytest.raises(SettingError, match="max_lag_versions"):
        Settings(max_lag_versions=-1)

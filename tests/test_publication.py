"""Publication: one version at a time, whole; and every wrong use."""

import gc
import pickle
import re
import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from motet.arrays import ArraySpec
from motet.errors import CorruptionError, MotetError, NotReadyError, SettingError, SpecError, SupersededError
from motet.publication import Publication
from motet.system.memory import Segment

HEADER = {"epsilon": ArraySpec(dtype="float64"), "stage": ArraySpec(dtype="int32"), "mean": ArraySpec((3,), "float32")}
BEFORE_SLOTS = 192  # bytes: constants, words, bell


def flat(value, n=5):
    return np.full(n, value, np.float32)


def slot_words(publication):
    """The shared words of every slot, as raw memory has them: sequence, version, checksum."""
    words = publication._memory.view(np.uint64)
    stride = int(words[3])
    first = BEFORE_SLOTS // 8
    return [words[first + i * stride // 8 :][:3] for i in range(publication.slots)]


@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("n", [1, 5, 40_000])  # the last is copied without the interpreter's lock
def test_subscribers_read_what_was_published(slots, checked, n):
    publication = Publication(n, HEADER, slots=slots, checked=checked)
    publisher, subscriber = publication.publisher(), publication.subscriber()
    assert not subscriber.refresh()
    for version in range(1, 8):
        mean = np.arange(3, dtype=np.float32) * version
        assert publisher.publish(flat(version, n), epsilon=1 / version, stage=version, mean=mean) == version
        assert subscriber.lag_versions == 1
        assert subscriber.refresh() and not subscriber.refresh() and not subscriber.met_write
        assert (subscriber.weights == version).all() and subscriber.weights.shape == (n,)
        assert (subscriber["epsilon"], subscriber["stage"]) == (1 / version, version)
        np.testing.assert_array_equal(subscriber["mean"], mean)
        assert (subscriber.version, subscriber.newest, subscriber.lag_versions) == (version, version, 0)
    assert subscriber.weights.ctypes.data % 64 == 0


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 4),
    st.lists(st.one_of(st.just("publish"), st.integers(0, 2)), max_size=40),
)
def test_every_subscriber_holds_some_version_whole_and_never_goes_back(slots, script):
    publication = Publication(5, HEADER, slots=slots)
    publisher = publication.publisher()
    subscribers = [publication.subscriber() for _ in range(3)]
    held = [0, 0, 0]
    newest = 0
    for step in script:
        if step == "publish":
            newest = publisher.publish(flat(newest + 1), epsilon=newest + 1.0, stage=newest + 1)
            continue
        assert subscribers[step].refresh() == (held[step] != newest)
        held[step] = newest
        for subscriber, version in zip(subscribers, held, strict=True):
            if version:
                assert subscriber.version == version == subscriber["stage"] == subscriber["epsilon"]
                assert (subscriber.weights == version).all()


def test_header_fields_keep_their_last_value():
    publication = Publication(5, HEADER)
    publisher, subscriber = publication.publisher(), publication.subscriber()
    publisher.publish(flat(1), epsilon=0.5, stage=3)
    publisher.publish(flat(2), stage=4)
    assert subscriber.refresh() and (subscriber["epsilon"], subscriber["stage"]) == (0.5, 4)


def test_without_a_header():
    publication = Publication(3)
    publication.publisher().publish(flat(7, 3))
    subscriber = publication.subscriber()
    assert subscriber.refresh() and subscriber.weights.tolist() == [7, 7, 7]


def test_versions_may_jump_and_be_repeated_but_never_go_back():
    publication = Publication(5)
    publisher, subscriber = publication.publisher(), publication.subscriber()
    assert publisher.publish(flat(1), version=10) == 10
    assert subscriber.refresh()
    assert publisher.publish(flat(2), version=10) == 10
    assert subscriber.refresh() and subscriber.version == 10 and subscriber.weights[0] == 2
    assert publisher.publish(flat(3)) == 11
    with pytest.raises(SettingError, match="version must be at least 11, got 10: versions never decrease"):
        publisher.publish(flat(4), version=10)


def test_a_wait_ends_with_a_publication_or_at_its_deadline():
    publication = Publication(5)
    publisher, subscriber = publication.publisher(), publication.subscriber()
    before = time.monotonic()
    assert not subscriber.wait(0.05) and time.monotonic() - before >= 0.05
    thread = threading.Thread(target=lambda: (time.sleep(0.02), publisher.publish(flat(1))))
    thread.start()
    assert subscriber.wait(60.0) and subscriber.refresh()
    thread.join()
    assert not subscriber.wait(0.0)


def test_a_subscriber_that_took_what_was_not_announced_yet_does_not_go_back():
    """It read how many there are, was put aside, and found the slot two publications further on."""
    publication = Publication(5)
    publisher, subscriber = publication.publisher(), publication.subscriber()
    for number in (1, 2, 3):
        publisher.publish(flat(number))
    announced = publication._memory.view(np.uint64)[8:9]
    assert announced[0] == 3
    seen = []
    for number in (1, 2, 3):
        announced[0] = number
        subscriber.refresh()
        seen.append((subscriber.version, subscriber.weights[0]))
    assert seen == [(3, 3.0)] * 3


def test_two_publications_share_a_segment():
    layout = {**Publication.layout(5, HEADER, prefix="a"), **Publication.layout(9, slots=1, prefix="b")}
    segment = Segment(layout)
    one, two = Publication(5, HEADER, segment=segment, prefix="a"), Publication(9, slots=1, segment=segment, prefix="b")
    one.publisher().publish(flat(1))
    two.publisher().publish(flat(2, 9))
    a, b = one.subscriber(), two.subscriber()
    assert a.refresh() and b.refresh() and a.weights.tolist() == [1] * 5 and b.weights.tolist() == [2] * 9


# ---- a write that is met, and a writer that died inside one


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_a_reader_that_meets_a_write_keeps_what_it_has(slots):
    publication = Publication(5, HEADER, slots=slots)
    publisher, subscriber = publication.publisher(), publication.subscriber()
    publisher.publish(flat(1), epsilon=1.0)
    assert subscriber.refresh()
    publisher.publish(flat(2), epsilon=2.0)
    words = slot_words(publication)[1 % slots]
    assert words[0] == 2 * (2 if slots == 1 else 1)
    words[0] += 1  # the newest slot is being written
    for times in (1, 2):
        assert not subscriber.refresh() and subscriber.met_write and subscriber.met_writes == times
    assert (subscriber.version, subscriber["epsilon"], subscriber.weights[0]) == (1, 1.0, 1.0)
    words[0] -= 1
    assert subscriber.refresh() and not subscriber.met_write and subscriber.version == 2


@pytest.mark.parametrize("slots", [1, 2])
def test_a_restarted_publisher_continues_after_a_death_inside_publish(slots):
    publication = Publication(5, HEADER, slots=slots)
    publisher, subscriber = publication.publisher(), publication.subscriber()
    for version in (1, 2, 3):
        publisher.publish(flat(version), epsilon=float(version))
    assert subscriber.refresh()
    words = slot_words(publication)[3 % slots]
    words[0] += 1  # died while it wrote version 4
    publication._memory[BEFORE_SLOTS + 64 + (3 % slots) * int(publication._memory.view(np.uint64)[3]) :][:70] = 0x55
    successor = publication.publisher()
    late = publication.subscriber()
    assert late.refresh() == (slots == 2), "with two slots version 3 is still whole"
    assert successor.publish(flat(4), epsilon=4.0) == 4
    assert words[0] % 2 == 0
    for reader in (subscriber, late):
        assert reader.refresh() and (reader.version, reader["epsilon"], reader.weights[0]) == (4, 4.0, 4.0)


def test_a_restarted_publisher_never_reuses_a_version_number_that_was_read():
    """The predecessor died when the slot was complete, but before it could say so."""
    publication = Publication(5, slots=1)
    publisher = publication.publisher()
    publisher.publish(flat(1))
    publisher.publish(flat(2))
    words = publication._memory.view(np.uint64)
    words[8] -= np.uint64(1)  # publications completed
    words[9] -= np.uint64(1)  # the newest version
    seen = publication.subscriber()
    assert seen.refresh() and (seen.version, seen.weights[0]) == (2, 2.0)
    assert seen.lag_versions == 0
    assert publication.publisher().publish(flat(9)) == 3
    assert seen.refresh() and (seen.version, seen.weights[0]) == (3, 9.0)


def test_a_superseded_publisher_writes_nothing():
    publication = Publication(5)
    publisher = publication.publisher()
    publication.publisher()
    with pytest.raises(
        SupersededError, match=r"another writer has taken over this publication \(incarnation 2, this one is 1\)"
    ):
        publisher.publish(flat(1))
    assert publisher.published == 0


# ---- checked mode


@pytest.mark.parametrize("where", ["header", "weights"])
def test_a_flipped_byte_is_found_and_what_was_held_stays(where):
    publication = Publication(5, HEADER, checked=True)
    publisher, subscriber = publication.publisher(), publication.subscriber()
    publisher.publish(flat(1), epsilon=1.0)
    assert subscriber.refresh()
    publisher.publish(flat(2), epsilon=2.0)
    stride = int(publication._memory.view(np.uint64)[3])
    payload = publication._memory[BEFORE_SLOTS + stride + 64 :]
    byte = 1 if where == "header" else publication._offset + 3
    payload[byte] ^= 4
    for _ in range(2):
        with pytest.raises(CorruptionError, match=r"publication 2, version 2: the checksum .* version 1 is kept"):
            subscriber.refresh()
        assert (subscriber.version, subscriber["epsilon"], subscriber.weights[0]) == (1, 1.0, 1.0)
    fresh = publication.subscriber()
    with pytest.raises(CorruptionError):
        fresh.refresh()
    with pytest.raises(NotReadyError):
        _ = fresh.weights
    payload[byte] ^= 4
    assert subscriber.refresh() and subscriber.version == 2


# ---- wrong use


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weights": 0}, "weights must be an int >= 1, got 0"),
        ({"weights": -3}, "weights must be an int >= 1, got -3"),
        ({"weights": 1, "slots": 0}, "slots must be 1 (snapshot), 2 (double buffer) or up to 64, got 0"),
        ({"weights": 1, "slots": 65}, "slots must be 1 (snapshot), 2 (double buffer) or up to 64, got 65"),
        (
            {"weights": 1, "header": {"x": ArraySpec(dtype="S4")}},
            "header x must have a bool, integer or float dtype, got 'S4'",
        ),
        (
            {"weights": 1, "header": {"x": ArraySpec(dtype="U4")}},
            "header x must have a bool, integer or float dtype, got 'U4'",
        ),
        (
            {"weights": 1, "header": {"version": ArraySpec(dtype="float64")}},
            "header names must be identifiers other than weights, version and self, got 'version'",
        ),
        (
            {"weights": 1, "header": {"a b": ArraySpec(dtype="float64")}},
            "header names must be identifiers other than weights, version and self, got 'a b'",
        ),
    ],
)
def test_bad_publications(settings, message):
    with pytest.raises(SettingError, match=re.escape(message)):
        Publication(**settings)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (flat(1, 4), "weights must be float32 with 5 items, got float32 with 16 bytes"),
        (flat(1, 6), "weights must be float32 with 5 items, got float32 with 24 bytes"),
        (np.ones(5), "weights must be float32 with 5 items, got float64 with 40 bytes"),
        (np.ones(5, ">f4"), "weights must be float32 with 5 items, got a foreign dtype"),
        (flat(1, 10)[::2], "weights must be a contiguous array of float32, got ndarray"),
        ([1.0] * 5, "weights must be a contiguous array of float32, got list"),
    ],
)
def test_bad_weights(weights, message):
    publisher = Publication(5).publisher()
    with pytest.raises(SpecError, match=re.escape(message)):
        publisher.publish(weights)
    assert publisher.published == 0


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"speed": 1.0}, "header field must be one of ['epsilon', 'stage', 'mean'], got 'speed'"),
        ({"stage": 2.7}, "header stage must be int32 (), got 2.7 (float64 ())"),
        ({"stage": 2**40}, "header stage must be int32 (), got 1099511627776"),
        ({"epsilon": "high"}, "header epsilon must be float64 (), got 'high'"),
        ({"epsilon": None}, "header epsilon must be float64 (), got None"),
        ({"mean": 1.0}, "header mean must be float32 (3,), got 1.0 (float64 ())"),
        ({"mean": np.zeros(2)}, "header mean must be float32 (3,), got"),
    ],
)
def test_bad_headers(header, message):
    publication = Publication(5, HEADER)
    publisher, subscriber = publication.publisher(), publication.subscriber()
    publisher.publish(flat(1), epsilon=0.5, stage=1)
    with pytest.raises(SpecError, match=re.escape(message)):
        publisher.publish(flat(2), **{"epsilon": 0.25, **header})
    publisher.publish(flat(3))
    assert subscriber.refresh()
    assert (subscriber.version, subscriber["epsilon"], subscriber["stage"]) == (2, 0.5, 1), (
        "no trace of the refused one"
    )


def test_nothing_taken_yet():
    publication = Publication(5, HEADER)
    subscriber = publication.subscriber()
    publication.publisher().publish(flat(1))
    for ask in (lambda: subscriber.weights, lambda: subscriber["epsilon"]):
        with pytest.raises(NotReadyError, match=r"this subscriber has no version yet: call refresh\(\) first"):
            ask()


def test_ends_stay_in_their_process():
    publication = Publication(5)
    for thing in (publication, publication.publisher(), publication.subscriber()):
        with pytest.raises((MotetError, TypeError), match="cannot"):
            pickle.dumps(thing)


def test_a_segment_without_room_for_it():
    segment = Segment(Publication.layout(5))
    with pytest.raises(SpecError, match=r"memory of a publication must have at least .* bytes, aligned to 64, got"):
        Publication(500, segment=segment)


def test_handles_free_what_they_hold():
    publication = Publication(5, HEADER)
    publisher = publication.publisher()
    gc.collect()
    before = sys.getrefcount(publication._memory)
    for _ in range(20):
        publisher.publish(flat(1))
        publication.subscriber().refresh()
    gc.collect()
    after = sys.getrefcount(publication._memory)
    assert after == before

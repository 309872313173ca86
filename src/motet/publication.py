"""Publication: versions of a learner's policy in shared memory. One publisher writes, any number of actors read.

The payload is flat: a small typed header (learner step, epsilon, stage, normaliser: the fields that the algorithm
declares) and the weights. Both are copied together, so that everything a subscriber sees belongs to one version. With
two slots (double buffer) the publisher fills the slot that does not hold the newest version. With one slot (snapshot)
it overwrites that slot. In both cases a subscriber verifies what it copied; if a write overlapped the copy, it keeps
the version that it has. Readers never make the writer wait, and the writer never makes a reader wait.

>>> header = {"epsilon": ArraySpec(dtype="float64"), "stage": ArraySpec(dtype="int64")}
>>> publication = Publication(weights=4, header=header)
>>> publisher, subscriber = publication.publisher(), publication.subscriber()
>>> publisher.publish(np.ones(4, "float32"), epsilon=0.25, stage=3)
1
>>> subscriber.refresh(), subscriber.version, subscriber.weights.tolist(), subscriber["epsilon"], subscriber["stage"]
(True, 1, [1.0, 1.0, 1.0, 1.0], 0.25, 3)
>>> subscriber.refresh()
False
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from motet import _native
from motet.arrays import ArraySpec
from motet.errors import NotReadyError, SettingError, SpecError, WaitTimeoutError
from motet.system.memory import LINE, Segment

__all__ = ["GivenVersion", "Publication", "Publisher", "Subscriber"]

_NO_VERSION = "this subscriber has no version yet: call refresh() first"


class Publication:
    """The shared memory of one publication. Pass it to the processes as an argument, and make the two ends there.

    Args:
        weights: number of float32 weights.
        header: the other values of a version, by name.
        slots: 2 is the double buffer, 1 the snapshot (half the memory, but reads overlap with writes more often).
        checked: for debugging: every version has a checksum, which is verified on reading.
        segment: a segment with room for :meth:`layout`; by default the publication creates one.
        prefix: prefix of its arrays in the segment.

    >>> publication = Publication(weights=3, header={"epsilon": ArraySpec(dtype="float64")})
    >>> publisher, subscriber = publication.publisher(), publication.subscriber()  # in two processes, usually
    >>> _ = publisher.publish(np.ones(3, "float32"), epsilon=0.5)
    >>> subscriber.refresh(), subscriber.weights.tolist(), float(subscriber["epsilon"])
    (True, [1.0, 1.0, 1.0], 0.5)
    """

    def __init__(
        self,
        weights: int,
        header: Mapping[str, ArraySpec] | None = None,
        *,
        slots: int = 2,
        checked: bool = False,
        segment: Segment | None = None,
        prefix: str = "publication",
    ) -> None:
        self.weights, self.header = weights, dict(header or {})
        self.slots, self._prefix = slots, prefix
        layout = self.layout(weights, header, slots=slots, prefix=prefix)
        self._segment = segment or Segment(layout)
        self._attach()
        _native.slots_format(self._memory, self._offset + weights * 4, slots, checked)

    @staticmethod
    def layout(
        weights: int, header: Mapping[str, ArraySpec] | None = None, *, slots: int = 2, prefix: str = "publication"
    ) -> dict[str, ArraySpec]:
        """Return the arrays that a segment needs for such a publication."""
        if weights < 1:
            raise SettingError(f"weights must be an int >= 1, got {weights}")
        if not 1 <= slots <= 64:
            raise SettingError(f"slots must be 1 (snapshot), 2 (double buffer) or up to 64, got {slots}")
        payload = _offset(_record(header or {})) + weights * 4
        return {f"{prefix}/slots": ArraySpec((_native.slots_bytes(payload, slots),), "uint8")}

    def _attach(self) -> None:
        self._record = _record(self.header)
        self._offset = _offset(self._record)
        self._memory = self._segment[f"{self._prefix}/slots"]

    def __getstate__(self) -> dict[str, Any]:
        keys = ("weights", "header", "slots", "_prefix", "_segment")
        return {key: self.__dict__[key] for key in keys}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._attach()

    def publisher(self) -> Publisher:
        """Take over the writing end. The process that wrote before, if there was one, must be dead."""
        publisher = Publisher(self._memory, self._record.itemsize, self._offset, self.weights * 4)
        publisher._header = np.zeros((), self._record)
        publisher._fields = {name: _range(item) for name, item in self.header.items()}
        publisher._bytes = publisher._header.reshape(1).view(np.uint8)
        return publisher

    def subscriber(self, given: GivenVersion | None = None) -> Subscriber:
        """Return a reading end with a private copy. With ``given`` it takes the version with that number."""
        spares = [_aligned(self._offset + self.weights * 4) for _ in range(2)]
        kind = Subscriber if given is None else _NumberedSubscriber
        subscriber = kind(self._memory, self._record.itemsize, self._offset, self.weights * 4, *spares)
        if isinstance(subscriber, _NumberedSubscriber):
            subscriber._given = given
        subscriber._headers = tuple(s[: self._record.itemsize].view(self._record)[0] for s in spares)
        subscriber._weights = tuple(s[self._offset :].view(np.float32) for s in spares)
        return subscriber


class Publisher(_native.SlotWriter):
    """The writing end of a publication, made by :meth:`Publication.publisher` in the process that publishes."""

    _header: npt.NDArray[Any]
    _bytes: npt.NDArray[np.uint8]
    _fields: dict[str, tuple[np.dtype[Any], tuple[int, ...], float, float]]

    def publish(self, weights: npt.NDArray[np.float32], *, version: int | None = None, **header: Any) -> int:
        """Publish weights and header as one version (its number is by default the newest plus one); return the version.

        A header field that is not given keeps its last value.
        """
        for name, value in header.items():
            self._check(name, value)
        for name, value in header.items():
            self._header[name] = value
        if version is None:
            version = self.newest + 1
        elif version < self.newest:
            raise SettingError(f"version must be at least {self.newest}, got {version}: versions never decrease")
        self._publish(self._bytes, weights, version)
        return version

    def _check(self, name: str, value: Any) -> None:
        if name not in self._fields:
            raise SpecError(f"header field must be one of {list(self._fields)}, got {name!r}")
        dtype, shape, low, high = self._fields[name]
        # A fast path: most values are plain numbers, for which numpy is slow.
        if not shape and (
            (type(value) is float and dtype.kind == "f") or (type(value) is int and low <= value <= high)
        ):
            return
        given = np.asarray(value)
        kinds = "biuf" if dtype.kind == "f" else "biu"
        whole = given.shape == shape and given.dtype.kind in kinds
        if not whole or (dtype.kind != "f" and (given.astype(dtype) != given).any()):
            raise SpecError(f"header {name} must be {dtype} {shape}, got {value!r} ({given.dtype} {given.shape})")


class Subscriber(_native.SlotReader):
    """A reading end of a publication, made by :meth:`Publication.subscriber` in the process that reads.

    ``refresh()`` takes the newest version if there is a new one and returns True. If there is none, it costs one memory
    load and returns False. If a write overlapped the copy, the subscriber keeps its version, returns False and sets
    ``met_write``. ``wait(timeout_s)`` waits until there is a new version. ``version`` is the number of the subscriber's
    version, ``newest`` that of the newest published version.
    """

    forced: int = 0
    """Number of times that :meth:`catch_up` found the subscriber's version too old."""
    waited_s: float = 0.0
    """Seconds that :meth:`take` has waited for versions that were being written."""
    _headers: tuple[Any, ...]
    _weights: tuple[npt.NDArray[np.float32], ...]

    @property
    def weights(self) -> npt.NDArray[np.float32]:
        """The weights of the subscriber's version. Read this property again after each refresh: two private copies
        alternate."""
        if not self._have:
            raise NotReadyError(_NO_VERSION)
        return self._weights[self._current]

    def __getitem__(self, name: str) -> Any:
        if not self._have:
            raise NotReadyError(_NO_VERSION)
        value = self._headers[self._current][name]
        return value.item() if value.ndim == 0 else value

    @property
    def lag_versions(self) -> int:
        """Number of versions by which the subscriber's version is behind the newest one."""
        return max(self.newest - self.version, 0)

    def take(self, timeout_s: float) -> bool:
        """Take the newest version, and wait if it is being written; return whether it is newer than the previous
        one."""
        before, wanted = self.version, self.newest
        began = time.monotonic()
        while not self.refresh() and self.version < wanted:
            if time.monotonic() > began + timeout_s:
                raise WaitTimeoutError(
                    f"a subscriber holds version {self.version} and could not read version {wanted} or a newer one for "
                    f"{timeout_s:g} s: its publisher writes without pause, or died during a write"
                )
            slept = time.monotonic()
            time.sleep(1e-4)
            self.waited_s += time.monotonic() - slept
        return self.version > before

    def catch_up(self, lag_versions: float, timeout_s: float) -> bool:
        """Take the newest version if the present one is more than ``lag_versions`` behind, and count that in
        ``forced``.

        Returns True if a newer version was taken.

        >>> publication = Publication(weights=4)
        >>> publisher, subscriber = publication.publisher(), publication.subscriber()
        >>> versions = [publisher.publish(np.ones(4, "float32")) for _ in range(3)]
        >>> subscriber.catch_up(3, timeout_s=1), subscriber.catch_up(2, timeout_s=1), subscriber.version
        (False, True, 3)
        """
        if self.newest - self.version <= lag_versions:
            return False
        self.forced += 1
        return self.take(timeout_s)


class GivenVersion:
    """The number of the version that some subscribers take instead of the newest one. The caller sets it.

    >>> given = GivenVersion(1)
    >>> publication = Publication(weights=4)
    >>> publisher, subscriber = publication.publisher(), publication.subscriber(given)
    >>> versions = [publisher.publish(np.full(4, n, "float32")) for n in range(2)]
    >>> subscriber.refresh(), subscriber.version, subscriber.refresh()
    (True, 1, False)
    >>> given.number = 2
    >>> subscriber.refresh(), subscriber.version
    (True, 2)
    """

    def __init__(self, number: int = 1) -> None:
        self.number = number


class _NumberedSubscriber(Subscriber):
    """A subscriber that takes a given version. The caller ensures that this version is in a slot."""

    _given: GivenVersion | None

    def refresh(self) -> bool:
        assert self._given is not None
        number = self._given.number
        if self.version == number:
            return False
        if not self.load(number):
            raise NotReadyError(
                f"version {number} must be in a slot of the publication, got versions up to {self.newest}"
            )
        return True

    def take(self, timeout_s: float) -> bool:
        return self.refresh()


def _record(header: Mapping[str, ArraySpec]) -> np.dtype[Any]:
    for name, item in header.items():
        if name in ("weights", "version", "self") or not name.isidentifier():
            raise SettingError(f"header names must be identifiers other than weights, version and self, got {name!r}")
        if np.dtype(item.dtype).kind not in "biuf":
            raise SettingError(f"header {name} must have a bool, integer or float dtype, got {item.dtype!r}")
    fields: list[Any] = [(name, np.dtype(item.dtype), item.shape) for name, item in header.items()]
    return np.dtype(fields or [("_pad", np.uint8)], align=True)


def _range(item: ArraySpec) -> tuple[np.dtype[Any], tuple[int, ...], float, float]:
    """Dtype and shape of a header field, and the lowest and highest integer that the field holds exactly."""
    dtype = np.dtype(item.dtype)
    if dtype.kind in "iu":
        return dtype, item.shape, np.iinfo(dtype).min, np.iinfo(dtype).max
    exact = 1 if dtype.kind == "b" else 2 ** (np.finfo(dtype).nmant + 1)
    return dtype, item.shape, 0 if dtype.kind == "b" else -exact, exact


def _offset(record: np.dtype[Any]) -> int:
    return -(-record.itemsize // LINE) * LINE


def _aligned(nbytes: int) -> npt.NDArray[np.uint8]:
    """Return private memory that begins on a cache line."""
    raw = np.zeros(nbytes + LINE, np.uint8)
    start = -raw.ctypes.data % LINE
    return raw[start : start + nbytes]

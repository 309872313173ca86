"""The global random streams of ``random``, ``numpy.random`` and torch, which the code of users may draw from.

Each world and each policy has separate streams, as if it were alone in its process. An episode that begins with
``reset(seed)`` finds them as ``random.seed(seed)``, ``numpy.random.seed(seed % 2**32)`` and
``torch.manual_seed(seed)`` would leave them. So what it draws depends neither on other worlds and policies in the same
process, nor on which process that is.

A generator is global, so only one stream can be installed at a time. A world or a policy is a *user* of the streams.
Before each call of a user's code, the caller calls :meth:`Streams.enter`, or :meth:`Streams.begin` before a reset. The
streams of this user then stay installed until another user's streams are entered. So a user that is alone in its
process never waits for an exchange of streams.

An exchange takes microseconds, which many small worlds in one actor would pay in every step. So a user that may be
*watched* gives up a stream that it did not draw from for a long time. From then on motet only checks, at the next
hand-over to another user and at the end of each episode, that the generator did not change during the user's calls. If
it did change, the user gets its stream back and :attr:`StreamUser.late` says so.

motet itself never draws from the global generators. Only then can a change be attributed to the user that was entered.
"""

from __future__ import annotations

import _random
import contextlib
import ctypes
import importlib
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

__all__ = [
    "EXCHANGE",
    "MADE",
    "StreamUser",
    "Streams",
    "callers_streams",
    "generators_of",
    "global_streams_kept",
    "made_alike",
    "seed_global",
    "streams_returned",
]

MADE = 0
"""The seed of the streams while a world or a policy is made, so that all copies are alike."""

_QUIET = 1000
"""Hand-overs without a draw after which a watched user gives up a stream."""
_WHOLE_EPISODES = 2
"""Episodes that each copy plays before its user gives up a stream, so that a draw in the second reset is seen too."""

_T = TypeVar("_T")

_numpy_random: Any = np.random  # numpy's type stubs do not list get_bit_generator and set_bit_generator


class StreamUser:
    """All copies of one world or one policy in this process, and what is known about their draws.

    Args:
        name: the user's name in messages.
        watched: whether the user gives up streams that it does not draw from.
    """

    def __init__(self, name: str, watched: bool = False) -> None:
        self.name, self.watched = name, watched
        self.late = 0
        """Generators from which the user drew for the first time after it had given up its stream; see
        ``generators_of``."""
        self.gives_up_all = False
        """Whether the user has given up all streams."""
        self._owns = [True, True, True]  # by generator: whether each copy has a stream
        self._drew = [False, False, False]
        self._quiet = [0, 0, 0]  # hand-overs without a draw

    def owns(self, generator: int) -> bool:
        """Whether each copy has its own stream of this generator."""
        return self._owns[generator]

    def knows(self, generators: int) -> None:
        """Record that the user draws from these generators, so that it keeps their streams."""
        for i in range(len(self._drew)):
            self._drew[i] = self._drew[i] or bool(generators & 1 << i)
        self.late |= generators

    def drew(self, generator: int, from_own: bool) -> None:
        """Note a draw. A user that drew keeps its streams, and gets them back if it had given them up."""
        if not from_own:
            self.late |= 1 << generator
        self._drew[generator] = self._owns[generator] = True
        self.gives_up_all = False

    def was_quiet(self, generator: int) -> None:
        """Note a hand-over to another user without a draw."""
        self._quiet[generator] += 1

    def give_up_unused(self) -> None:
        """Give up the streams that were not drawn from for a long time."""
        for i, quiet in enumerate(self._quiet):
            if quiet >= _QUIET and not self._drew[i]:
                self._owns[i] = False
        self.gives_up_all = not any(self._owns)

    def get_state(self) -> dict[str, Any]:
        """Return what is known about the user's draws, as plain values."""
        return {"owns": list(self._owns), "drew": list(self._drew), "quiet": list(self._quiet), "late": self.late}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`get_state` returned."""
        self._owns, self._drew = list(state["owns"]), list(state["drew"])
        self._quiet, self.late = list(state["quiet"]), state["late"]
        self.gives_up_all = not any(self._owns)


class Streams:
    """The global streams of one copy of a user.

    >>> first, second = Streams(StreamUser("first")), Streams(StreamUser("second"))
    >>> def drawn(streams):
    ...     streams.enter()
    ...     return random.random(), np.random.rand()
    >>> first.begin(seed=3)
    >>> second.begin(seed=3)
    >>> apart = [drawn(one) for one in (first, second, second, first)]
    >>> apart[0] == apart[1], apart[2] == apart[3], apart[0] == apart[2]
    (True, True, False)
    """

    def __init__(self, user: StreamUser) -> None:
        self.user = user
        # By generator: the saved state, or the seed while nothing has been drawn. Both are outdated after a draw.
        self._fresh: list[int | None] = [MADE, MADE, MADE]
        self._kept: list[Any] = [None, None, None]
        self._outdated = [False, False, False]
        self._episodes = 0
        self._returns = False

    def begin(self, seed: int) -> None:
        """Begin an episode: start all streams from its seed, and install them."""
        exchange, seed = EXCHANGE, int(seed)
        exchange.attribute()
        if self.user.watched:
            if self._episodes >= _WHOLE_EPISODES:
                self.user.give_up_unused()
            self._episodes += 1
        exchange.drop(self)
        self._fresh, self._outdated = [seed, seed, seed], [False, False, False]
        exchange.hand_over(self)

    def enter(self) -> None:
        """Install the streams. Call it before each call of the user's code."""
        current = EXCHANGE.current
        if current is self:
            return
        if current.user is self.user and self.user.gives_up_all:
            EXCHANGE.current = self  # draws of both count for the same user
            return
        EXCHANGE.attribute()
        EXCHANGE.hand_over(self)

    def begun(self, seed: int) -> Streams:
        """Begin an episode in a ``with`` block, as :meth:`begin` does."""
        self._returns = EXCHANGE.current is EXCHANGE.caller
        self.begin(seed)
        return self

    def __enter__(self) -> Streams:
        """Install the streams for a block. If the calling program's streams were installed, they are restored at the
        block's end."""
        self._returns = self._returns or EXCHANGE.current is EXCHANGE.caller
        self.enter()
        return self

    def __exit__(self, *_: object) -> None:
        if self._returns:
            self._returns = False
            EXCHANGE.caller.enter()

    def end(self) -> None:
        """Check at the end of an episode that the user has not drawn from a stream that it gave up."""
        if not all(self.user._owns):
            EXCHANGE.attribute()

    def get_state(self) -> list[Any]:
        """Return the states of all streams, as plain values. Changes nothing."""
        exchange = EXCHANGE
        exchange.attribute()
        found: list[Any] = []
        for i, generator in enumerate(exchange.generators):
            if self._outdated[i]:
                found.append(generator.seen())
            else:
                found.append(self._fresh[i] if self._fresh[i] is not None else generator.as_plain(self._kept[i]))
        return [self._episodes, *found]

    def set_state(self, state: list[Any]) -> None:
        """Continue from what :meth:`get_state` returned."""
        exchange = EXCHANGE
        exchange.attribute()
        exchange.drop(self)
        self._episodes, *streams = state
        self._outdated = [False, False, False]
        for i, kept in enumerate(streams):
            if isinstance(kept, int):
                self._fresh[i] = kept
            else:
                self._fresh[i], self._kept[i] = None, exchange.generators[i].from_plain(kept)
        if exchange.current is self:
            exchange.hand_over(self)


# ---- one class for each generator. A state is what save() returned; a plain state can be written to a file


class _Plain:
    """The generator of the module ``random``."""

    name = "random"

    def __init__(self) -> None:
        # Reading the state through getstate() takes 100 times as long, because it makes 625 objects.
        self._memory = _memory_of(random._inst)

    def ready(self) -> bool:
        return True

    def mark(self) -> Any:
        """Return a value that is equal only while nothing is drawn."""
        if self._memory is None:
            return random.getstate()
        return self._memory.raw, random._inst.gauss_next  # type: ignore[attr-defined]

    def seed(self, seed: int, kept: Any) -> Any:
        """Start the generator from a seed. Return a state to pass as ``kept`` the next time."""
        random.seed(seed)
        return None

    def save(self) -> Any:
        return random.getstate()

    def load(self, state: Any) -> None:
        random.setstate(state)

    def leave_spare(self) -> None:
        """Make sure that draws do not change the saved state."""

    def seen(self) -> Any:
        return self.as_plain(random.getstate())

    def as_plain(self, state: Any) -> Any:
        version, words, gauss = state
        return version, np.array(words, np.uint32), gauss

    def from_plain(self, plain: Any) -> Any:
        version, words, gauss = plain
        return version, tuple(words.tolist()), gauss


def _memory_of(generator: random.Random) -> Any:
    """Return the memory that holds the state of a generator, or None if it is not laid out as expected."""
    if sys.implementation.name != "cpython" or _random.Random.__basicsize__ - object.__basicsize__ < _STATE_BYTES:
        return None
    memory = (ctypes.c_char * _STATE_BYTES).from_address(id(generator) + object.__basicsize__)
    *words, position = generator.getstate()[1]
    return memory if np.frombuffer(memory.raw, np.uint32).tolist() == [position, *words] else None


_STATE_BYTES = 4 * 625  # state of a Mersenne twister: 624 words and a position


class _Numpy:
    """The generator of the functions in ``numpy.random``.

    Its bit generator is exchanged: reading or writing the state takes 20 us. The second of two normal numbers is kept
    beside the bit generator until it is drawn, and is saved with it.
    """

    name = "numpy.random"

    def __init__(self) -> None:
        self._bits: Any = None  # the bit generator at whose memory the view points
        self._memory: Any = None
        self._spare: Any = None
        self._some_state: Any = None  # any state will do here, because reading the present state takes 20 us

    def ready(self) -> bool:
        return True

    def mark(self) -> Any:
        memory = self._view()
        return memory.raw if memory is not None else repr(np.random.get_state(legacy=False))

    def _view(self) -> Any:
        bits = _numpy_random.get_bit_generator()
        if bits is not self._bits:
            self._bits, self._memory = bits, None
            if _IS_READABLE and type(bits) is np.random.MT19937:
                self._memory = (ctypes.c_char * _STATE_BYTES).from_address(bits.ctypes.state_address)
        return self._memory

    def seed(self, seed: int, kept: Any) -> Any:
        bits = kept[0] if kept is not None else np.random.MT19937(MADE)
        if _numpy_random.get_bit_generator() is not bits:
            _numpy_random.set_bit_generator(bits)
        np.random.seed(seed % 2**32)
        return bits, None

    def save(self) -> Any:
        """Return the bit generator and the kept normal. Another bit generator must be installed after it."""
        bits, memory = _numpy_random.get_bit_generator(), self._view()
        if memory is None:
            state = np.random.get_state(legacy=False)
            return bits, state["gauss"] if state["has_gauss"] else None
        before = memory.raw
        normal = np.random.standard_normal()
        if memory.raw == before:  # no bits were used, so the drawn number was the kept one
            return bits, normal
        memory.raw = before
        return bits, None

    def load(self, state: Any) -> None:
        bits, normal = state
        _numpy_random.set_bit_generator(bits)  # discards the kept normal number of the previous bit generator
        if normal is None:
            return
        memory = self._view()
        if memory is None:
            np.random.set_state({**bits.state, "has_gauss": 1, "gauss": normal})
            return
        if self._some_state is None:
            self._some_state = np.random.MT19937(MADE).state
        before = memory.raw
        np.random.set_state({**self._some_state, "has_gauss": 1, "gauss": normal})
        memory.raw = before

    def leave_spare(self) -> None:
        if self._spare is None:
            self._spare = np.random.MT19937(MADE)
        _numpy_random.set_bit_generator(self._spare)

    def seen(self) -> Any:
        return dict(np.random.get_state(legacy=False))

    def as_plain(self, state: Any) -> Any:
        bits, normal = state
        return {**bits.state, "has_gauss": int(normal is not None), "gauss": normal or 0.0}

    def from_plain(self, plain: Any) -> Any:
        bits = getattr(np.random, plain["bit_generator"])()
        bits.state = plain
        return bits, plain["gauss"] if plain["has_gauss"] else None


def _is_readable() -> bool:
    """Whether the memory of numpy's Mersenne twister is laid out as expected: 624 words, then the position."""
    bits = np.random.MT19937(MADE)
    state: Any = bits.state["state"]
    memory = (ctypes.c_char * _STATE_BYTES).from_address(bits.ctypes.state_address)
    return bool(np.frombuffer(memory.raw, np.uint32).tolist() == [*state["key"].tolist(), state["pos"]])


_IS_READABLE = _is_readable()


class _Torch:
    """torch's default generator, on the CPU. It exists only once some code has imported torch."""

    name = "torch"

    def __init__(self) -> None:
        self._generator: Any = None
        self._has_accelerator = False

    def ready(self) -> bool:
        if self._generator is None:
            torch: Any = sys.modules.get("torch")
            self._generator = getattr(torch, "default_generator", None)  # missing during the import
            if self._generator is not None:
                self._has_accelerator = torch.accelerator.is_available()
        return self._generator is not None

    def first_seed(self) -> int:
        """Return the seed that the generator had after the import, if nobody has set one."""
        return int(self._generator.initial_seed())

    def pristine(self) -> Any:
        """Return the mark that the generator had after the import."""
        generator = sys.modules["torch"].Generator()
        return generator.manual_seed(self.first_seed()).get_state().numpy().tobytes()

    def mark(self) -> Any:
        return self._generator.get_state().numpy().tobytes()

    def seed(self, seed: int, kept: Any) -> Any:
        if self._has_accelerator:
            sys.modules["torch"].manual_seed(seed)
        else:  # the same effect, 100 times as fast
            self._generator.manual_seed(seed)
        return None

    def save(self) -> Any:
        return self._generator.get_state()

    def load(self, state: Any) -> None:
        self._generator.set_state(state)

    def leave_spare(self) -> None: ...

    def seen(self) -> Any:
        return self.as_plain(self.save())

    def as_plain(self, state: Any) -> Any:
        return state.numpy().copy()

    def from_plain(self, plain: Any) -> Any:
        # a user drew from torch's generator, so torch will be imported
        return importlib.import_module("torch").from_numpy(plain)


class Exchange:
    """Which streams are installed in this process.

    Loops that are run often compare ``EXCHANGE.current`` before they call :meth:`Streams.enter`.
    """

    def __init__(self) -> None:
        self.generators: tuple[Any, ...] = (_Plain(), _Numpy(), _Torch())
        self._program = Streams(StreamUser("the program"))
        self.current = self.caller = self._program
        """``caller`` is the program, or the user whose code makes or plays another user."""
        self.holders: list[Streams | None] = [self._program, self._program, None]
        """By generator: the owner of the installed stream. It is the current user or None."""
        self._marks: list[Any] = [None, None, None]  # taken when the current user was entered

    def attribute(self) -> None:
        """Attribute what was drawn since the last hand-over to the current user."""
        user = self.current.user
        for i, generator in enumerate(self.generators):
            if not generator.ready():
                continue
            if i == _TORCH and self._marks[i] is None:
                self._meet_torch()
            mark = generator.mark()
            if mark == self._marks[i]:
                continue
            self._marks[i] = mark
            holder = self.holders[i]
            user.drew(i, from_own=holder is not None)
            if holder is not None:
                holder._outdated[i] = True

    def _meet_torch(self) -> None:
        """Torch was imported since the last hand-over. The current user may have drawn from it already."""
        if self.current is self._program:
            self.holders[_TORCH] = self._program
        else:
            first = self.generators[_TORCH].first_seed()
            self._marks[_TORCH], self._program._fresh[_TORCH] = self.generators[_TORCH].pristine(), first

    def drop(self, streams: Streams) -> None:
        """Forget the state of these streams, because they begin again."""
        for i, holder in enumerate(self.holders):
            if holder is streams:
                self.holders[i] = None
                if i == _NUMPY:
                    streams._kept[i] = _numpy_random.get_bit_generator(), None

    def hand_over(self, to: Streams) -> None:
        """Install the streams of the next user. Call :meth:`attribute` before."""
        was, self.current = self.current, to
        for i, generator in enumerate(self.generators):
            if not generator.ready():
                was.user.was_quiet(i)
                continue
            holder, owns = self.holders[i], to.user.owns(i)
            if holder is to:
                continue
            if holder is not None:
                if holder._outdated[i]:
                    holder._kept[i], holder._fresh[i], holder._outdated[i] = generator.save(), None, False
                else:
                    was.user.was_quiet(i)
                self.holders[i] = None
                if not owns:
                    generator.leave_spare()
            elif not owns:
                continue
            if owns:
                seed = to._fresh[i]
                if seed is not None:
                    to._kept[i] = generator.seed(seed, to._kept[i])
                else:
                    generator.load(to._kept[i])
                    # Drawing a kept normal changes no bits, so the mark would not show it.
                    to._outdated[i] = i == _NUMPY and to._kept[i][1] is not None
                self.holders[i] = to
            self._marks[i] = generator.mark()


_NUMPY, _TORCH = 1, 2

EXCHANGE = Exchange()
# Generators belong to the process. So there is one record per process of whose streams are installed.


# ---- for callers of users' code


def generators_of(late: int) -> list[str]:
    """Return the names of the generators in :attr:`StreamUser.late`.

    >>> generators_of(3)
    ['random', 'numpy.random']
    """
    return [generator.name for i, generator in enumerate(EXCHANGE.generators) if late & 1 << i]


def made_alike(name: str, make: Callable[[], _T]) -> _T:
    """Make a world or a policy with streams that start from a fixed seed, so that all copies are alike.

    >>> made_alike("a world", random.random) == made_alike("a world", random.random)
    True
    """
    streams, had_torch = Streams(StreamUser(name)), "torch" in sys.modules
    with streams_returned():
        streams.begin(MADE)
        made = make()
        if not had_torch and "torch" in sys.modules:  # torch's stream was not seeded, so the object is made again
            streams.begin(MADE)
            made = make()
    return made


def seed_global(seed: int) -> None:
    """Start the global streams from a seed, unless the installed streams have just been started from this seed."""
    EXCHANGE.attribute()
    current = EXCHANGE.current
    for i, generator in enumerate(EXCHANGE.generators):
        if generator.ready() and (current._fresh[i] != seed or current._outdated[i]):
            generator.seed(seed, (_numpy_random.get_bit_generator(), None))


@contextlib.contextmanager
def streams_returned() -> Iterator[None]:
    """At the end of the block, install the streams again that were installed at its beginning.

    >>> random.seed(3)
    >>> with streams_returned():
    ...     Streams(StreamUser("a world")).begin(4)
    ...     _ = random.random()
    >>> there = random.random()
    >>> random.seed(3)
    >>> random.random() == there
    True
    """
    before, outer = EXCHANGE.current, EXCHANGE.caller
    EXCHANGE.caller = before
    try:
        yield
    finally:
        EXCHANGE.caller = outer
        before.enter()


@contextlib.contextmanager
def callers_streams() -> Iterator[None]:
    """Within the block, install the streams of the program that called motet, for the callbacks of this program."""
    caller = EXCHANGE.caller
    with streams_returned():
        caller.enter()
        yield


@contextlib.contextmanager
def global_streams_kept() -> Iterator[None]:
    """Restore the global random states at the end of the block, so that the same numbers are drawn again.

    >>> random.seed(3)
    >>> with global_streams_kept():
    ...     first = random.random()
    >>> random.random() == first
    True
    """
    plain, arrays = random.getstate(), np.random.get_state()
    torch = sys.modules.get("torch")
    tensors = None if torch is None else torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(plain)
        np.random.set_state(arrays)
        if torch is not None:
            torch.set_rng_state(tensors)

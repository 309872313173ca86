"""The mailbox: the shared memory between a policy process and its parent, its layout, and how values are put and taken.

The parent writes a question (observation, mask, seed) and rings a bell. The policy process writes the answer (an
action, or the text of an error) and rings another bell. A question has a number, and its answer carries the same one.

The policy process may write anywhere in this memory at any time, so the parent trusts nothing in it. The parent keeps
dtypes, shapes and capacities outside the mailbox, reads every word once, and checks what it read.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from motet import _native
from motet.arrays import ArraySpec
from motet.errors import SettingError
from motet.masks import is_discrete, mask_form
from motet.system.memory import Segment
from motet.world.spaces import observation_caster

__all__ = [
    "ACT", "FAILED", "FINE", "INVALID", "KIND", "MASK", "MORE", "NUMBER", "PICKLED", "PIECE_BYTES", "REFUSED", "RESET",
    "STATE", "VALUE", "Mailbox", "is_arrays", "layout",
]  # fmt: skip

# Kinds of questions.
RESET, ACT, PICKLED = 1, 2, 3
# States of answers. MORE requests the next piece of a pickled observation.
FINE, MORE, FAILED, INVALID, REFUSED = 0, 1, 2, 3, 4

MASK = 16
"""Added to the kind of a question that has a mask."""

# Words of a question: its number, its kind, and the seed or the length of the pickled observation.
NUMBER, KIND, VALUE = 0, 1, 2
# Words of an answer: the number of the question (NUMBER), the state, and the length of the text.
STATE, LENGTH = 1, 2

PIECE_BYTES = 256 * 1024
TEXT_BYTES = 8 * 1024

Put = Callable[[Any], None]
Take = Callable[[], Any]


class Mailbox:
    """The shared memory of one policy process, as both sides use it. :meth:`bind` has to be called with the spaces.

    Args:
        segment: memory with the arrays of :func:`layout`.
        fresh: whether the memory is new and has to be initialised.
    """

    def __init__(self, segment: Segment, *, fresh: bool = False) -> None:
        self.segment = segment
        self.asked = _native.Bell(segment["bells"][0], fresh)
        self.answered = _native.Bell(segment["bells"][1], fresh)
        if fresh:
            for name in ("question", "answer", "written"):
                segment[name].fill(0)
        # Through a memoryview, words are plain integers and faster to read and write than through an array.
        self.question, self.answer, self.written = (segment[name].data for name in ("question", "answer", "written"))
        self.mask, self.output = segment["mask"], segment["output"]

    def bind(self, observations: Any, actions: Any) -> None:
        """Set the spaces of observations and actions, and with them how these are put and taken."""
        self.put_action: Put
        self.take_action: Take
        if is_discrete(actions):  # a plain number, faster than a 0-d array
            word = self.segment["action"].reshape(1).data
            self.put_action, self.take_action = partial(word.__setitem__, 0), partial(word.__getitem__, 0)
        else:
            self.put_action, self.take_action = _crossing(actions, self.segment, "action")
        if "piece" in self.segment:
            self.piece: npt.NDArray[np.uint8] = self.segment["piece"]
        else:
            self.put_observation, self.take_observation = _crossing(observations, self.segment, "observation")

    # ---- text of the policy, for the parent

    def text(self) -> str:
        """Return the error text that the policy process wrote."""
        length = min(self.answer[LENGTH], TEXT_BYTES)
        return self.segment["text"][:length].tobytes().decode(errors="replace")

    def put_text(self, text: str) -> None:
        """Write an error text. One that is too long is cut at the end."""
        data = np.frombuffer(text.encode(errors="replace")[:TEXT_BYTES], np.uint8)
        self.segment["text"][: len(data)] = data
        self.answer[LENGTH] = len(data)

    def printed(self) -> str:
        """Return the end of the policy's output."""
        written, size = self.written[0], len(self.output)
        data = self.output.tobytes()
        data = data[:written] if written <= size else data[written % size :] + data[: written % size]
        return data.decode(errors="replace")


def layout(observations: Any, actions: Any, masked: bool, output_bytes: int) -> dict[str, ArraySpec]:
    """Return the arrays of a mailbox.

    Args:
        observations: the observation space. If its values are not arrays, observations are pickled and sent in pieces.
        actions: the action space; its values must be arrays.
        masked: whether questions may have masks.
        output_bytes: bytes of the policy's output that are kept.
    """
    return {
        "bells": ArraySpec((2, _native.BELL_BYTES), "uint8"),
        "question": ArraySpec((8,), "uint64"),
        "answer": ArraySpec((8,), "uint64"),
        "written": ArraySpec((8,), "uint64"),
        "text": ArraySpec((TEXT_BYTES,), "uint8"),
        "output": ArraySpec((output_bytes,), "uint8"),
        "mask": ArraySpec((mask_form(actions).size if masked else 0,), "bool"),
        **_leaves(actions, "action"),
        **(
            _leaves(observations, "observation")
            if is_arrays(observations)
            else {"piece": ArraySpec((PIECE_BYTES,), "uint8")}
        ),
    }


def is_arrays(space: Any) -> bool:
    """Whether values of the space are arrays, or dicts and tuples of them."""
    try:
        observation_caster(space, "")
    except SettingError:
        return False
    return True


def _parts(space: Any, name: str) -> dict[Any, tuple[Any, str]] | None:
    """Return the parts of a dict or tuple space by key, each with a unique name; None for a single array."""
    inner = getattr(space, "spaces", None)
    if inner is None:
        return None
    items = inner.items() if hasattr(inner, "items") else enumerate(inner)
    return {key: (part, f"{name}.{index}") for index, (key, part) in enumerate(items)}


def _leaves(space: Any, name: str) -> dict[str, ArraySpec]:
    """Return all arrays that make up a value of a space."""
    parts = _parts(space, name)
    if parts is None:
        return {name: ArraySpec(tuple(space.shape or ()), space.dtype)}
    return {key: array for part in parts.values() for key, array in _leaves(*part).items()}


def _crossing(space: Any, segment: Segment, name: str) -> tuple[Put, Take]:
    """Return a function that puts a value of a space into the segment, and one that takes a copy out of it."""
    parts = _parts(space, name)
    if parts is None:
        return _array_crossing(segment[name])
    inner = {key: _crossing(part, segment, part_name) for key, (part, part_name) in parts.items()}

    def put(value: Any) -> None:
        for key, (put_part, _) in inner.items():
            put_part(value[key])

    def take_dict() -> dict[Any, Any]:
        return {key: take() for key, (_, take) in inner.items()}

    def take_tuple() -> tuple[Any, ...]:
        return tuple(take() for _, take in inner.values())

    return put, take_dict if hasattr(space.spaces, "items") else take_tuple


def _array_crossing(view: npt.NDArray[Any]) -> tuple[Put, Take]:
    def put(value: Any) -> None:
        view[...] = value

    return put, view.copy

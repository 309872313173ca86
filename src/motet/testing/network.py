"""Check networks of users before a run."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

from motet.algorithm import Space
from motet.errors import SettingError, SpecError

__all__ = ["check_network"]

_CHILD = """
import pickle, sys
sys.path[:], data = pickle.load(sys.stdin.buffer)
source, name, given = pickle.loads(data)
source.make(name, *given)
"""


def check_network(network: Any, observation_space: Space, outputs: int | None = None, *, n_frames: int = 1) -> None:
    """Raise :class:`~motet.errors.SpecError` if a network breaks a rule, or cannot be made in another process.

    Args:
        network: what ``network=``, ``critic=`` or ``encoder=`` of an algorithm gets: a function or its path.
        observation_space: the space of one observation.
        outputs: number of outputs; None for an encoder, which gets the space only and chooses the number itself.
        n_frames: number of stacked observations.

    >>> from gymnasium.spaces import Box
    >>> from torch.nn import BatchNorm1d, Linear
    >>> check_network(lambda space, outputs: Linear(space.shape[0], outputs), Box(0, 1, (4,)), 3)
    >>> check_network(lambda space: BatchNorm1d(4), Box(0, 1, (4,)))
    Traceback (most recent call last):
        ...
    motet.errors.SpecError: encoder must keep no state beside its parameters, got the buffer running_mean, which \
training changes (as those of BatchNorm); use LayerNorm or GroupNorm
    """
    from motet.algorithms._own import Seen, check_plan
    from motet.algorithms.source import Source

    name = "encoder" if outputs is None else "network"
    try:
        source, seen = Source.of(network, name), Seen(observation_space, n_frames)
        if source is None:
            raise SettingError(f"{name} must be a function that makes a torch.nn.Module, got None")
        plan = seen.encoder(source) if outputs is None else seen.network(source, name, outputs)
        check_plan(plan, remembers=True)
    except SettingError as error:
        raise SpecError(str(error)) from error
    given = (seen.space,) if outputs is None else (seen.space, outputs)
    _check_in_child(source, name, given)


def _check_in_child(source: Any, name: str, given: tuple[Any, ...]) -> None:
    message = pickle.dumps((sys.path, pickle.dumps((source, name, given))))
    done = subprocess.run([sys.executable, "-c", _CHILD], input=message, capture_output=True, timeout=120, check=False)
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
        raise SpecError(f"{name} must be made in other processes too, got {source}, which failed in one: {last[0]}")

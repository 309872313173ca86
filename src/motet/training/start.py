"""Starting weights from another run: ``start_from`` of an agent (:class:`~motet.AgentSettings`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from motet.algorithm import AlgorithmConfig, Sizes, Space
from motet.errors import SettingError
from motet.policies.entries import learner_row
from motet.runs.config import describe, spaces_of
from motet.training.settings import AgentSettings

__all__ = ["start_row", "started"]

_OF_NETWORKS = (
    *("network", "encoder", "critic", "hidden", "head", "activation", "dueling", "n_frames", "normalise", "memory"),
    *("memory_size",),
)
"""Settings that determine the layout of a row; an algorithm may have only some of them."""


def start_row(
    given: str, name: str, config: AlgorithmConfig, sizes: Sizes, observation_space: Space, action_space: Space
) -> npt.NDArray[np.float32]:
    """Return the row from which an agent starts; raise if it belongs to other spaces or networks."""
    stored, spaces, row = learner_row(given, name)
    for kind, mine in spaces_of(observation_space, action_space).items():
        if (theirs := spaces.get(kind, mine)) != mine:
            raise SettingError(
                f"start_from must be a run with the same {kind} space, {mine}, got {given!r}, which has {theirs}"
            )
    try:
        plain = describe(config)
    except SettingError:  # the config has a function that cannot be imported
        plain = {}
    if plain.get("class") and stored.get("class") and plain["class"] != stored["class"]:
        raise SettingError(
            f"start_from must be a run with the same algorithm, {plain['class']}, got {given!r}, which has "
            f"{stored['class']}"
        )
    for key in _OF_NETWORKS:
        if key in plain and key in stored and plain[key] != stored[key]:
            raise SettingError(
                f"start_from must be a run with the same networks, with {key}={plain[key]!r}, got {given!r}, which has "
                f"{stored[key]!r}"
            )
    if row.shape != (sizes.state,) or row.dtype != np.float32:
        raise SettingError(
            f"start_from must be a run whose learner has {sizes.state} numbers, got {given!r}, which has {row.size}: "
            "its observations, actions or networks differ"
        )
    if not np.isfinite(row).all():
        raise SettingError(f"start_from must be a run with finite weights, got {given!r}")
    return row


def started(chosen: Any) -> Any:
    """Return the algorithms of a run that is resumed, without ``start_from``: its agents have already started."""
    if isinstance(chosen, Mapping):
        return {name: started(one) for name, one in chosen.items()}
    return replace(chosen, start_from=None) if isinstance(chosen, AgentSettings) else chosen

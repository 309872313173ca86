"""Humans whose policies were learned by a run of ``attain``, for the robots of ``empower``."""

from __future__ import annotations

import os
from typing import Any

from motet.algorithms.attain import AttainBehaviour, LearnedHumans
from motet.errors import SettingError
from motet.policies.entries import load_policies
from motet.policy import BehaviourPolicy

__all__ = ["learned_humans"]


def learned_humans(run: str | os.PathLike[str], *, world: Any = None, trust: bool = False) -> LearnedHumans:
    """Return the humans of a run of ``attain``, to be given to :class:`~motet.worlds.OneMind` as ``humans``.

    ::

        humans = learned_humans("runs/bushes-attain-1")
        train(functools.partial(OneMind, Bushes, humans=humans), "empower")

    Args:
        run: the run directory, or one of its checkpoints.
        world: the world of the run, if it cannot be imported by the names in the run.
        trust: allow the run to name a model outside of motet, whose code is then imported and run.
    """
    policies = load_policies(run, world=world, trust=trust)
    for policy in policies.values():
        if isinstance(policy, BehaviourPolicy) and isinstance(policy.behaviour, AttainBehaviour):
            return LearnedHumans(policy.behaviour)
    raise SettingError(f"run must be a run of the algorithm attain, got {os.fspath(run)!r}")

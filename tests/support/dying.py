"""Learners that are killed by SIGKILL at given points of their work, once at each point."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from support.foreign_losses import DiscreteSAC
from support.stand_in import StandIn

from motet.algorithms.dqn import DQNConfig
from motet.algorithms.ppo import PPOConfig
from motet.publication import Publication, Publisher
from motet.system.memory import LINE


class _Deaths:
    """Where a learner dies: ``before update:N``, ``after vault:V``, ``within vault:V``, ``within publication:V``, ….

    *Within* is after the slot of version V is complete, and before it is announced. A text that is given twice kills
    the restarted learner there too.
    """

    def __init__(self, deaths, folder):
        self._deaths, self._folder = deaths, Path(folder)

    def here(self, point):
        """Whether to die here, which each text says once."""
        for i, death in enumerate(self._deaths):
            mark = self._folder / f"death{i}"
            if death == point and not mark.exists():
                mark.touch()
                return True
        return False

    def watch(self, algorithm):
        update, publisher, publish = algorithm.update, Publication.publisher, Publisher.publish

        def dying_update(*given):
            if self.here(f"before update:{int(algorithm.counters[:, 0].max()) + 1}"):
                die()
            return update(*given)

        def made(publication):
            ours: Any = publisher(publication)
            ours.memory = publication._memory
            return ours

        def dying_publish(ours, weights, *, version=None, **header):
            version = publish(ours, weights, version=version, **header)
            what = "vault" if "counters" in header else "aside" if "phases" in header else "publication"
            if self.here(f"within {what}:{version}"):
                ours.memory[LINE : LINE + 8].view(np.uint64)[0] -= 1  # the number of announced versions
                die()
            if self.here(f"after {what}:{version}"):
                die()
            return version

        algorithm.update = dying_update
        setattr(Publication, "publisher", made)  # noqa: B010 - a method
        setattr(Publisher, "publish", dying_publish)  # noqa: B010
        return algorithm


def die():
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Dying:
    deaths: tuple[str, ...] = ()
    folder: str = ""

    def build(self, *given, **named):
        made = super().build(*given, **named)  # type: ignore[misc]
        return _Deaths(self.deaths, self.folder).watch(made) if self.deaths else made


@dataclass(frozen=True)
class DyingStandIn(Dying, StandIn):
    pass


@dataclass(frozen=True)
class DyingDQN(Dying, DQNConfig):
    pass


@dataclass(frozen=True)
class DyingPPO(Dying, PPOConfig):
    pass


@dataclass(frozen=True)
class DyingLoss(Dying, DiscreteSAC):
    pass

"""motet: many learners, one world, nobody waits.

The verbs are here; their settings and results are in the modules of the same names. Importing motet imports neither
torch nor ray.
"""

from motet._version import __version__
from motet.errors import MotetError
from motet.evaluation.evaluate import Evaluation, evaluate
from motet.evaluation.tournament import Tournament, tournament
from motet.pace import Pace
from motet.policies.entries import load_policies
from motet.publication import Publication
from motet.replay import Field, Replay, ReplaySpec
from motet.training.run import Settings, resume, train
from motet.world import World, as_world

__all__ = [
    "Evaluation",
    "Field",
    "MotetError",
    "Pace",
    "Publication",
    "Replay",
    "ReplaySpec",
    "Settings",
    "Tournament",
    "World",
    "__version__",
    "as_world",
    "evaluate",
    "load_policies",
    "regret",
    "resume",
    "tournament",
    "train",
]


def __getattr__(name: str) -> object:
    if name == "regret":  # brings planning along, which training does without
        from motet.evaluation.regret import regret

        return regret
    raise AttributeError(f"module 'motet' has no attribute {name!r}")

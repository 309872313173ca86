"""Training: actors, learners, the memory they share, and the engines that run them."""

from typing import TYPE_CHECKING

from motet._lazy import lazily

if TYPE_CHECKING:
    from motet.training.evaluator import Outcome
    from motet.training.league import League
    from motet.training.objects import object_world, train_objects
    from motet.training.recorder import Result
    from motet.training.run import resume, train
    from motet.training.seeds import SeedRuns, train_seeds
    from motet.training.settings import Settings

__all__ = [
    "League",
    "Outcome",
    "Result",
    "SeedRuns",
    "Settings",
    "object_world",
    "resume",
    "train",
    "train_objects",
    "train_seeds",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "League": "motet.training.league",
        "Outcome": "motet.training.evaluator",
        "Result": "motet.training.recorder",
        "SeedRuns": "motet.training.seeds",
        "Settings": "motet.training.run",
        "object_world": "motet.training.objects",
        "resume": "motet.training.run",
        "train": "motet.training.run",
        "train_objects": "motet.training.objects",
        "train_seeds": "motet.training.seeds",
    },
)

"""Matching pennies for self-play, and settings of a short league."""

import functools

from motet.policy import ConstantPolicy
from motet.training.league import League
from motet.training.settings import Settings
from motet.worlds import MatrixGame


class Coins(MatrixGame):
    """Matching pennies with anchors: player 0 wants a match, so sides matter."""

    scripted = {"heads": functools.partial(ConstantPolicy, 0), "tails": functools.partial(ConstantPolicy, 1)}  # noqa: RUF012

    def __init__(self, turns=7):
        super().__init__("matching_pennies", turns=turns)


QUICK = League(snapshot_every=150, review_every=50, pool=2, block=2, out="weakest")


def quick(**settings):
    return Settings(**{"steps": 1500, "updates_per_step": 0.3, "self_play": True, "league": QUICK, **settings})

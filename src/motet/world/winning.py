"""Who won a game. The league, the evaluations of a run, ``evaluate`` and ``tournament`` decide by this rule.

A world declares the rule by two attributes: ``won_by`` is ``"end"`` (the rewards at the end of the game decide) or
``"total"`` (the total rewards decide), and ``winning_margin`` is the difference above which a game is won.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from motet.errors import SettingError

__all__ = ["WinRule", "WonBy", "decide"]

WonBy = Literal["end", "total"]


def decide(advantage: float, margin: float) -> int:
    """Return 1 for a win, 0 for a draw and -1 for a loss, given a player's score minus that of its opponent.

    >>> decide(3.0, margin=2.0), decide(2.0, margin=2.0), decide(-3.0, margin=2.0)
    (1, 0, -1)
    """
    return int(advantage > margin) - int(advantage < -margin)


@dataclass(frozen=True)
class WinRule:
    """How the winner of a game is determined.

    >>> rule = WinRule("end", margin=10.0)
    >>> rule.outcome(10.0, -10.0), rule.outcome(0.0, 0.5)
    (1, 0)
    """

    won_by: WonBy = "total"
    """Whether the rewards at the end of a game or its total rewards decide."""
    margin: float = 0.0
    """Difference above which a game is won; otherwise it is a draw."""

    def outcome(self, own: float, theirs: float) -> int:
        """Return 1 for a win, 0 for a draw and -1 for a loss, given two scores."""
        return decide(own - theirs, self.margin)

    @classmethod
    def declared_by(cls, env: Any) -> WinRule | None:
        """Return the rule that an environment declares, or None if it has no ``won_by``."""
        return None if _declared(env, "won_by") is None else cls.resolved(env)

    @classmethod
    def resolved(cls, env: Any, won_by: WonBy | None = None, margin: float | None = None) -> WinRule:
        """Return the given rule, else the rule that the environment declares, else total rewards without a margin."""
        by, least = _declared(env, "won_by"), _declared(env, "winning_margin")
        if by not in (None, "end", "total"):
            raise SettingError(f"won_by must be 'end' or 'total', got {by!r}")
        try:
            declared = 0.0 if least is None else float(least)
        except (TypeError, ValueError):
            declared = math.nan
        if not 0 <= declared < math.inf:
            raise SettingError(f"winning_margin must be a finite number >= 0, got {least!r}")
        return cls(won_by or by or "total", declared if margin is None else margin)


def _declared(env: Any, name: str) -> Any:
    """Return an attribute of an environment, even if wrappers around it do not forward attributes."""
    found = getattr(env, name, None)
    return getattr(getattr(env, "unwrapped", env), name, None) if found is None else found

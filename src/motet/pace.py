"""Pace: the number of updates per step, and how far actors or learners may run ahead.

With ``s`` steps done by an agent, ``u`` updates done by its learner, ``r`` updates per step and ``w`` warm-up steps,

    due(s) = floor(r * max(0, s - w))

the learner may update once ``s > w`` while ``u < due(s) + slack``, and the actor may act while ``due(s) - slack <= u``.
Infinite slack is free-running: neither side ever waits. Finite slack bounds both sides. Zero slack is *lockstep*: after
every round of the actors the learners do exactly the updates that are due before the next round begins, and the result
is the same as in the serial engine, bit for bit.

For rows that are read once the ratio is fixed: one update for each complete batch. With ``b`` complete batches the
learner may update while ``u < b``, and the actor may act while ``b - slack_once <= u``. With a slack of 1 the actor
collects the next batch while the learner uses the last one. Free-running is not possible here: a full lane would stall
the other agents of its world.

With *periods* both sides work at the same time, and yet the result is a function of the seed: which rows and versions
are read is determined by the schedule, not by timing. A period is a number of rounds. *Phase* k is the learning that
belongs to periods 0 to k.

- An actor begins period b once every learner has published the version of phase ``b - 1 - ahead`` (the initial version
  if that is negative), and acts by that version throughout the period. Actors do not wait for each other.
- A stack of policies begins phase k once every actor has ended period k, or has finished. It does the updates that are
  due for periods 0 to k, drawn from rows of these periods only, and then writes its vault once and publishes once, also
  if no update was due.
- If an evaluation is due after phase k, actors begin no further period before that evaluation begins. It begins when
  the previous evaluation has ended. Only at that point does the previous result count. If that result ends the run,
  ``k + 1 + ahead`` periods are played.
- Versions are numbered by phase: 1 is the initial one, ``k + 2`` that of phase k.

With ``ahead=1`` period k + 1 and phase k run at the same time, and the policy is exactly one period old. With
``ahead=0`` both sides take turns. The serial engine plays period b, then phase ``b - ahead``.

>>> pace = Pace(updates_per_step=0.5, slack=2)
>>> pace.due(100, warm_up=10), pace.may_learn(44, 100, warm_up=10), pace.may_learn(47, 100, warm_up=10)
(45, True, False)
>>> pace.may_act(42, 100, warm_up=10), pace.may_act(43, 100, warm_up=10)
(False, True)
>>> periods = Pace(updates_per_step=0.5, slack=0, period=100)
>>> [periods.version_in(period) for period in range(4)]
[1, 1, 2, 3]
>>> periods.may_begin(2, phases=0), periods.may_begin(2, phases=1), periods.room
(False, True, 201)
>>> pace.may_learn_once(3, batches=3), pace.may_learn_once(3, batches=4), pace.may_act_once(3, batches=4)
(False, True, True)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt

from motet.errors import SettingError
from motet.settings import FINITE, check_fields

__all__ = ["FREE", "LOCKSTEP", "Pace"]


@dataclass(frozen=True)
class Pace:
    """The balance between acting and learning.

    >>> Pace(updates_per_step=0.5, slack=0)  # lockstep: an update after every second step
    Pace(updates_per_step=0.5, slack=0, slack_once=1.0, period=0, ahead=1)
    """

    updates_per_step: Annotated[float, Gt(0), FINITE] = 1.0
    """Updates of a learner for each step of its agent; ignored if the slack is infinite."""
    slack: Annotated[float, Ge(0)] = math.inf
    """Number of updates that either side may be ahead of the pace; 0 is lockstep, infinity is free-running."""
    slack_once: Annotated[float, Ge(0), FINITE] = 1.0
    """For rows that are read once: number of complete batches that may wait for the learner while actors continue."""
    period: Annotated[int, Ge(0)] = 0
    """Number of rounds in a period; 0: there are no periods."""
    ahead: Literal[0, 1] = 1
    """With periods: the number of periods that actors may be ahead of the learners."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.period and self.slack:
            raise SettingError(f"slack must be 0 with a period, got {self.slack}: a phase does exactly what is due")
        if 0 < self.slack < max(1.0, self.updates_per_step):
            raise SettingError(
                f"slack must be 0 (lockstep) or at least the {max(1.0, self.updates_per_step):g} updates of one step, "
                f"got {self.slack}: with less neither side could continue"
            )
        if 0 < self.slack_once < 1:
            raise SettingError(
                "slack must be 0 (lockstep) or a finite number >= 1 for rows that are read once, got "
                f"{self.slack_once}: a full lane would stall the other agents"
            )

    @property
    def free(self) -> bool:
        """Whether actors and learners run without waiting for each other."""
        return math.isinf(self.slack)

    @property
    def lockstep(self) -> bool:
        """Whether rounds of acting and learning alternate."""
        return self.slack == 0 and not self.period

    @property
    def rows_of_period(self) -> int:
        """With periods: the maximum number of rows that an actor writes to a lane in one period; otherwise 0.

        Each action gives one row, and each end of an episode gives a final row. The first row that is written in a
        period may belong to an action of the period before.
        """
        return 2 * self.period + 1 if self.period else 0

    @property
    def room(self) -> int:
        """With periods: the maximum number of rows that an actor writes to a lane during one phase; otherwise 0."""
        return self.ahead * self.rows_of_period

    @property
    def rounds_kept(self) -> int:
        """With periods: the maximum number of rounds of an actor that no phase has processed yet; otherwise 0."""
        return (1 + self.ahead) * self.period

    @property
    def versions_kept(self) -> int:
        """With periods: the number of versions that must be kept, because an actor may need any of them. Otherwise
        0."""
        return 2 if self.period else 0

    @property
    def asides(self) -> int:
        """With periods: the maximum number of evaluations whose policies are kept at the same time: one plays, the
        others wait."""
        return 2 + self.ahead

    def last_after(self, phases: int) -> int:
        """Number of periods to play if an evaluation ends the run when this many phases are published."""
        return phases + self.ahead

    def may_begin(self, period: int, phases: int) -> bool:
        """Whether an actor may begin a period when every learner has published this many phases."""
        return period - self.ahead <= phases

    def version_in(self, period: int) -> int:
        """Return the number of the version by which all actors act in a period."""
        return max(1, period + 1 - self.ahead)

    def first_period_after(self, phase: int) -> int:
        """Return the first period in which actors act by the version that a phase publishes."""
        return phase + 1 + self.ahead

    def may_learn_phase(self, phase: int, periods: int) -> bool:
        """Whether a stack may begin a phase when every actor has ended this many periods."""
        return phase < periods

    def patience(self, lanes: int) -> int:
        """Number of due updates that a learner may delay for one agent, to do them in one pass with those of other
        agents.

        It is the number of updates that one step in each lane makes due, but at most half of the slack, so that actors
        need not wait. With periods the number is 0: a phase does all due updates.
        """
        if self.period:
            return 0
        owed = math.ceil(self.updates_per_step * lanes)
        return owed if self.lockstep or self.free else min(owed, math.floor(self.slack / 2))

    def due(self, steps: int, warm_up: int = 0) -> int:
        """Number of updates that are due after this many steps."""
        return math.floor(self.updates_per_step * max(0, steps - warm_up))

    def may_learn(self, updates: int, steps: int, warm_up: int = 0) -> bool:
        """Whether one more update is allowed."""
        return steps > warm_up and (self.free or updates < self.due(steps, warm_up) + self.slack)

    def first_due(self, updates: int, warm_up: int = 0) -> int:
        """Smallest number of steps at which one more update is allowed.

        >>> Pace(updates_per_step=0.3, slack=0).first_due(updates=1, warm_up=10)
        17
        """
        if self.free or updates < self.slack:
            return warm_up + 1
        missing = math.floor(updates - self.slack) + 1
        steps = warm_up + math.ceil(missing / self.updates_per_step)
        while self.due(steps, warm_up) < missing:  # rounding: the product may be below what the quotient gave
            steps += 1
        while steps > warm_up + 1 and self.due(steps - 1, warm_up) >= missing:
            steps -= 1
        return steps

    def may_act(self, updates: int, steps: int, warm_up: int = 0) -> bool:
        """Whether one more round of acting is allowed."""
        return self.free or self.due(steps, warm_up) - self.slack <= updates

    def may_learn_once(self, updates: int, batches: int) -> bool:
        """Whether one more update is allowed where rows are read once: its batch must be complete."""
        return updates < batches

    def may_act_once(self, updates: int, batches: int) -> bool:
        """Whether one more round of acting is allowed where rows are read once."""
        return batches - self.slack_once <= updates


FREE = Pace()
"""The free-running pace: actors and learners never wait for each other."""
LOCKSTEP = Pace(slack=0)
"""The lockstep pace with one update per step."""

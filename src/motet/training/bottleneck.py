"""Bottleneck: which part of a run limits its speed, and which setting changes that, judged by how processes spent time.

An actor that waits for the pace waits for learners, and a learner that waits for the pace waits for actors. So the side
that waits less is the bottleneck, and the activity on which it spends most time shows what would make it faster.
"""

from __future__ import annotations

from collections.abc import Mapping

from motet.runs.snapshot import WAITS, ProcessRow, Snapshot
from motet.training.roster import Roster

__all__ = ["bottleneck"]

_LITTLE = 0.1  # share of waiting below which no change of a setting is suggested
_MUCH = 0.25

Shares = Mapping[str, float]


def bottleneck(snapshot: Snapshot, roster: Roster, cores: int, serial: bool) -> str:
    """Return what limits the speed of a run and the setting to change, in one sentence; empty if it is not known yet.

    While the run is running, its last seconds count; afterwards the whole time since it was started or resumed.

    Args:
        snapshot: the snapshot, whose processes are in the order of the board.
        roster: the participants of the run.
        cores: number of usable cores.
        serial: whether one process does everything.
    """
    shares = [_shares(row, snapshot.state == "running") for row in snapshot.processes]
    if serial:
        return _of_one_process(shares[0], roster) if shares and shares[0] else ""
    known = [each for each in shares[: roster.actors] if each]
    learners = [each for each in shares[roster.actors : roster.actors + len(roster.processes)] if each]
    if not known or not learners:
        return ""
    actors = {name: sum(each.get(name, 0.0) for each in known) / len(known) for name in {n for e in known for n in e}}
    busiest = min(learners, key=_waiting)
    if not busiest.get("updates") and _waiting(busiest) > 0.99:  # learners still wait for their first rows
        return ""
    return (
        _of_interruptions(actors, roster)
        or _of_turns(actors, busiest, roster)
        or _of_pace(actors, busiest, roster)
        or _of_cores(len(known) + len(learners), roster, cores)
    )


def _shares(row: ProcessRow, lately: bool) -> Shares:
    """Return the share of each activity of a process. Its start does not count."""
    spent = {name: value for name, value in (row.shares if lately else row.spent_s).items() if name != "start"}
    total = sum(spent.values())
    if total <= 0 or (lately and row.shares.get("start", 0.0) > 0.5):
        return {}
    return {name: value / total for name, value in spent.items()}


def _waiting(shares: Shares) -> float:
    return sum(shares.get(name, 0.0) for name in WAITS)


def _of_one_process(shares: Shares, roster: Roster) -> str:
    advice = {
        "world": ("The world takes", "train with engine=processes and raise actors"),
        "policies": (
            "Choosing actions takes",
            f"raise worlds_per_actor (now {roster.worlds_per_actor}), so that more worlds share each decision",
        ),
        "updates": ("Updates take", _fewer_updates(roster)),
        "batches": ("Drawing batches takes", _fewer_updates(roster)),
        "publishing": ("Publishing takes", _fewer_versions(roster)),
        "evaluation": ("Evaluations take", "raise evaluate_every, or lower evaluate_episodes"),
        "disk": ("Writing files takes", "raise checkpoint_every, or leave out keep_replay"),
        "partner": ("Waiting for isolated partners takes", "raise worlds_per_actor"),
    }
    name = max(advice, key=lambda each: shares.get(each, 0.0))
    what, setting = advice[name]
    return f"{what} {_percent(shares, name)} of the time: {setting}."


def _fewer_updates(roster: Roster) -> str:
    if all(policy.settings.once for policy in roster.policies):
        return "make the algorithm's updates cheaper, for PPO with fewer epochs"
    return f"lower updates_per_step (now {roster.pace.updates_per_step:g}), or train with engine=processes"


def _fewer_versions(roster: Roster) -> str:
    if roster.pace.period:
        return f"raise period (now {roster.pace.period})"
    return f"raise publish_every (now {roster.policies[0].publish_every})"


def _of_interruptions(actors: Shares, roster: Roster) -> str:
    """Return the sentence for actors that wait for something other than the pace."""
    advice = {
        "partner": "an isolated partner: leave isolate out, or raise worlds_per_actor",
        "evaluation": "evaluations: raise evaluate_every, or lower evaluate_episodes",
        "rows": "room for their rows, because a learner or the connection to it is slow: lower actors, or "
        "cluster.block_age_s",
        "weights": f"versions that are being written: {_other_publishing(roster)}",
    }
    name = max(advice, key=lambda each: actors.get(each, 0.0))
    if actors.get(name, 0.0) < max(_LITTLE, actors.get("pace", 0.0)):
        return ""
    return f"The actors wait {_percent(actors, name)} of the time for {advice[name]}."


def _other_publishing(roster: Roster) -> str:
    fewer = _fewer_versions(roster)
    return fewer if roster.pace.period else f"set publish to double_buffer, or {fewer}"


def _of_turns(actors: Shares, learner: Shares, roster: Roster) -> str:
    """Return the sentence for a run in which actors and learners take turns."""
    pace = roster.pace
    if pace.lockstep:
        why, setting = "slack is 0", "raise slack"
    elif pace.period and not pace.ahead:
        why, setting = "ahead is 0", "set ahead to 1"
    else:
        return ""
    return (
        f"Actors and learners take turns, since {why}: actors work {1 - _waiting(actors):.0%} of the time, the "
        f"busiest learner {1 - _waiting(learner):.0%}; {setting}, so that they work at the same time."
    )


def _of_pace(actors: Shares, learner: Shares, roster: Roster) -> str:
    by_actors, by_learner = _waiting(actors), _waiting(learner)
    if max(by_actors, by_learner) < _LITTLE:
        return ""
    balance = _balance(by_actors, by_learner, roster)
    if by_actors >= by_learner:
        return (
            f"The learners limit the run: the busiest works {1 - by_learner:.0%} of the time, and the actors wait "
            f"{_percent(actors, 'pace')} of it for the pace; {_for_learners(learner, balance, roster)}."
        )
    name = max(("world", "policies"), key=lambda each: actors.get(each, 0.0))
    setting = {
        "world": f"raise actors (now {roster.actors})",
        "policies": f"raise worlds_per_actor (now {roster.worlds_per_actor})",
    }[name]
    what = {"world": "in the world", "policies": "choosing actions"}[name]
    if balance:
        setting += f" or raise {balance}"
    return (
        f"The actors limit the run: they work {1 - by_actors:.0%} of the time ({_percent(actors, name)} {what}), and "
        f"every learner waits at least {by_learner:.0%} of it; {setting}."
    )


def _balance(by_actors: float, by_learner: float, roster: Roster) -> str:
    """Return the updates per step with which both sides of a reproducible run would work equally long.

    In such a run each side waits at the end of every period, so the side with less work always waits.
    """
    if not roster.pace.period or by_learner >= 1 or all(policy.settings.once for policy in roster.policies):
        return ""
    now = roster.pace.updates_per_step
    balanced = now * (1 - by_actors) / (1 - by_learner)
    return f"updates_per_step (now {now:g}) to about {balanced:.2g}, with which both sides would work equally long"


def _for_learners(learner: Shares, balance: str, roster: Roster) -> str:
    """Return the setting that makes learners faster."""
    once = all(policy.settings.once for policy in roster.policies)
    if learner.get("publishing", 0.0) >= _MUCH and not once:
        fewer = f"{_fewer_versions(roster)}, since publishing takes {_percent(learner, 'publishing')}"
        return f"{fewer}, or lower {balance}" if balance else fewer
    settings = []
    if len(roster.processes) < len(roster.policies):
        settings.append(f"raise learner_processes (now {len(roster.processes)})")
    if once:
        settings.append("make the algorithm's updates cheaper, for PPO with fewer epochs")
    else:
        settings.append(f"lower {balance or f'updates_per_step (now {roster.pace.updates_per_step:g})'}")
    return " or ".join(settings)


def _of_cores(processes: int, roster: Roster, cores: int) -> str:
    """Return the sentence for a run in which neither side waits."""
    if processes > cores:
        return (
            f"No process waits for another one, but {processes} of them share {cores} core{'s' if cores > 1 else ''}: "
            f"lower actors (now {roster.actors}) or learner_processes (now {len(roster.processes)})."
        )
    return (
        f"No process waits for another one: raise actors (now {roster.actors}) for more steps, or set updates_per_step "
        "for another number of updates per step."
    )


def _percent(shares: Shares, name: str) -> str:
    return f"{shares.get(name, 0.0):.0%}"

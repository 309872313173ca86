"""Cuts: the checkpoints from which a reproducible run continues as if it had never stopped.

A cut is made while all actors wait at the end of a period, or have ended. A cut that contains ``done`` phases holds

- for each actor, its worlds, unfinished rows and random streams, at the end of period ``done``, or anywhere within it;
- for each stack, the vault of phase ``done - 1``, which has learned from the periods before, and all rows;
- the version by which actors act in period ``done``, and the league's tables of both versions.

A run that ended within a period continues within this period. At its end the run did a phase with an incomplete period.
A longer run would not have done this phase, so the cut does not contain it. The cut also leaves out the phase after
which the run had done all its steps: whether an evaluation is due after that phase depends on the steps that are still
to come.

Actors write their state into letters (:class:`~motet.system.memory.Letter`), so no part of the state is left anywhere
if the actors are killed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from motet.errors import NotReadyError
from motet.publication import GivenVersion, Publication
from motet.replay import rewound
from motet.runs.checkpoint import Checkpoint
from motet.runs.plain import decode, encode
from motet.training.board import FINISHED
from motet.training.roster import Roster
from motet.training.shared import SharedMemory

__all__ = ["ENDED", "add_cut", "difference", "fitting", "letters", "post", "start_from_cut", "state_in", "vault_of_cut"]

ENDED = FINISHED
"""Number of the letter of an actor that has ended."""
_LANE = "lane"
_BEFORE = "before_"  # prefix of the arrays of the league's previous version


def post(shared: SharedMemory, actor: int, number: int, notes: Mapping[str, Any]) -> None:
    """Write an actor's state into its letter."""
    shared.letters[actor].write(number, json.dumps(encode(notes)).encode())


def letters(shared: SharedMemory, cut: int) -> list[dict[str, Any]] | None:
    """Return the states of all actors; None if an actor neither has ended nor waits at this cut. ``cut`` 0: all must
    have ended."""
    if any(letter.number != ENDED and not 0 < letter.number == cut for letter in shared.letters):
        return None
    return [decode(json.loads(letter.read())) for letter in shared.letters]


def add_cut(shared: SharedMemory, checkpoint: Checkpoint, actors: Sequence[dict[str, Any]]) -> None:
    """Add a cut to a checkpoint, while no actor plays. Learners may do the phase after those in the cut.

    Raises:
        NotReadyError: the vault of its last phase is not there any more.
    """
    roster, pace, board = shared.roster, shared.roster.pace, shared.board
    rounds = [int(actor["memory"]["rounds"]) for actor in actors]
    full = [played // pace.period for played in rounds]
    phases = int(board.learned.phases.min()) - (shared.most_steps() >= roster.steps)
    done = max(min(*full, phases), 0)
    even = max(rounds) <= (done + 1) * pace.period
    if not even:  # an actor ended some periods before the others: it continues at their period
        done = min(max(full), phases)
        for actor, played in zip(actors, rounds, strict=True):
            actor["memory"]["rounds"] = max(played, done * pace.period)
    version, acting = done + 1, pace.version_in(done)
    for k in range(len(roster.stacks)):
        _add_stack(shared, checkpoint, k, version)
    evaluation = int(_held(shared.vaults[0], version)["evaluation"][0])
    row = board.evaluation
    checkpoint.notes["cut"] = {
        "period": pace.period,
        "ahead": pace.ahead,
        "done": done,
        "even": even,
        "evaluation": evaluation,
        "reaches": bool(row.reaches[0] and not row.reached[0] and int(row.played[0]) == evaluation),
        "actors": list(actors),
        "before": {} if acting == version else {
            policy.name: _written(publication, acting)
            for policy, publication in zip(roster.policies, shared.publications, strict=True)
        },
    }  # fmt: skip
    if shared.league is not None:
        before = {} if acting == version else shared.league.dump(acting)
        checkpoint.league = shared.league.dump(version) | {_BEFORE + name: array for name, array in before.items()}


def _add_stack(shared: SharedMemory, checkpoint: Checkpoint, stack: int, version: int) -> None:
    """Add rows and learners of a stack, with the vault of this version."""
    roster, members = shared.roster, shared.roster.stacks[stack]
    vault = _held(shared.vaults[stack], version)
    states = vault.weights.reshape(len(members), -1)
    for i, member in enumerate(members):
        policy, replay = roster.policies[member], shared.replays[member]
        found: dict[str, Any] = {"state": states[i], "random": vault["random"][i, : policy.sizes.random]}
        names = ("counters", "reader", "steps", "stage", "record", "cleared")
        found |= {name: vault[name][i] for name in names}
        if policy.settings.prioritised:
            found["priorities"] = vault["priorities"][i]
        found["evaluation"] = vault["evaluation"]
        checkpoint.replay[policy.name] = {name: np.array(array) for name, array in found.items()}
        cursors = replay.spec.cursors(found["reader"]).tolist()
        for lane in range(replay.spec.n_lanes):
            rows: Any = replay.dump(lane)
            if policy.settings.once:
                rows = rewound(rows, cursors[lane], policy.settings.n_frames - 1)
                if rows is None:
                    raise NotReadyError(f"the rows of {policy.name} that its learner has not read are not there")
            checkpoint.replay[policy.name][f"{_LANE}{lane}"] = rows


def _held(publication: Publication, version: int) -> Any:
    """Return a subscriber that holds a version."""
    subscriber = publication.subscriber(GivenVersion(version))
    subscriber.refresh()
    return subscriber


def _written(publication: Publication, version: int) -> dict[str, Any]:
    """Return a version of a publication."""
    held = _held(publication, version)
    header = {name: held[name] for name in publication.header}
    return {"version": version, "weights": held.weights.copy(), "header": header}


# ---- continuing


def fitting(checkpoint: Checkpoint, roster: Roster) -> Checkpoint:
    """Return a checkpoint without its cut if a run with this roster cannot continue from it."""
    if "cut" not in checkpoint.notes:
        return replace(checkpoint, replay={}) if roster.pace.period else checkpoint
    cut, pace = checkpoint.notes["cut"], roster.pace
    if (cut["period"], cut["ahead"]) == (pace.period, pace.ahead) and len(cut["actors"]) == roster.actors:
        return checkpoint
    notes = {name: note for name, note in checkpoint.notes.items() if name != "cut"}
    return replace(checkpoint, notes=notes, replay={} if pace.period else checkpoint.replay)


def difference(checkpoint: Checkpoint, roster: Roster) -> str:
    """Say how a reproducible run that continues from a checkpoint differs from one that never stopped, if it does."""
    cut = checkpoint.notes.get("cut")
    if cut is None:
        return (
            "the run continues with new episodes and an empty replay: its result is a function of the checkpoint and "
            "the seed, but not that of an uninterrupted run (keep_replay makes it so)"
        )
    actors = cut["actors"]
    if any(actor["worlds"] is None for actor in actors):
        return "a world or partner cannot save its state: the run continues with new episodes, and " + _NOT_THE_SAME
    if not cut["even"]:
        return "at this checkpoint one actor has ended more periods than another, and " + _NOT_THE_SAME
    unsaved = [
        policy.name
        for i, policy in enumerate(roster.policies)
        if any(actor["streams"][i] is None for actor in actors)
    ]  # fmt: skip
    if unsaved:
        return (
            f"{', '.join(unsaved)}: the behaviour cannot save its random stream (it has no get_stream and set_stream), "
            "so it starts a new one, and " + _NOT_THE_SAME
        )
    return ""


_NOT_THE_SAME = "the result of the run is not that of an uninterrupted run"


def state_in(checkpoint: Checkpoint, policy: str) -> dict[str, Any]:
    """Return a policy's learner from which a run continues. At the end of a run this may be the learner before the last
    phase."""
    held = checkpoint.agents[policy]
    return held | checkpoint.replay[policy] if "cut" in checkpoint.notes else held


def vault_of_cut(shared: SharedMemory, checkpoint: Checkpoint, stack: int) -> dict[str, Any]:
    """Return what periods add to the header of a vault."""
    roster = shared.roster
    held = [checkpoint.replay[roster.policies[p].name] for p in roster.stacks[stack]]
    names = [name for name in ("record", "cleared", "priorities") if name in held[0]]
    return {name: np.stack([arrays[name] for arrays in held]) for name in names} | {"evaluation": held[0]["evaluation"]}


def start_from_cut(shared: SharedMemory, checkpoint: Checkpoint) -> None:
    """Let actors, the league and evaluations start where a cut was made. Rows must have been restored before."""
    cut, board, roster = checkpoint.notes["cut"], shared.board, shared.roster
    done, pace = cut["done"], roster.pace
    for policy, publication in zip(roster.policies, shared.publications, strict=True):
        if (one := cut["before"].get(policy.name)) is not None:
            publication.publisher().publish(one["weights"], version=one["version"], **one["header"])
    if shared.league is not None and checkpoint.league:
        before = {
            name.removeprefix(_BEFORE): array for name, array in checkpoint.league.items() if name.startswith(_BEFORE)
        }
        if before:
            shared.league.restore(before, pace.version_in(done))
        shared.league.restore(checkpoint.league, done + 1)
    board.evaluation.reaches[0] = cut["reaches"]
    board.evaluation.begun[0] = board.evaluation.played[0] = cut["evaluation"]
    assert shared.records is not None
    for i, actor in enumerate(cut["actors"]):
        rounds = int(actor["memory"]["rounds"])
        board.rounds[i], board.begun[i] = rounds, -(-rounds // pace.period)
        board.periods[i] = done
        if rounds == (done + 1) * pace.period:
            shared.records.write(i)

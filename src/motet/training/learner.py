"""learn(): batches in, updates and publications out.

A learner runs a *stack*: one or several policies with equal settings, updated in one pass, each with its own replay,
weights, optimiser and random stream. Every few updates the whole state of the stack goes into its *vault*, in one
version, and then the weights of each policy into its publication, in this order: no actor ever sees a version that a
restarted learner could not continue from. The learner does not know who writes the replay or who subscribes.

Where rows are read once, every update is kept, and only then are its rows given back to the writers: vault, release,
publication. A death before the vault repeats the update from rows that are still there; a death behind it finds the
cursor in the vault, and the successor gives back what its predecessor did not get to. Either way each row has been used
once by the state that lives on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from motet.algorithm import Algorithm, Batch, ReaderSettings, Sizes, Update
from motet.errors import NotReadyError
from motet.schedule import value_at

__all__ = ["StackMember", "learn", "restore", "state_of", "vault_header"]


class RowReader(Protocol):
    """Where batches come from."""

    @property
    def state_words(self) -> int:
        """How many words save_state writes."""
        ...

    def sample(self, batch_size: int, *, beta: float = ..., into: Any = ...) -> Any:
        """Draw a batch."""
        ...

    def take(self, fragments: int, length: int, *, into: Any = ...) -> Any:
        """The next rows, each of them once; None if there are too few."""
        ...

    def release(self) -> None:
        """Give what was taken back to the writers."""
        ...

    def update(self, batch: Any, priority: npt.NDArray[np.float32], /) -> None:
        """New priorities."""
        ...

    def ready(self) -> int:
        """Rows from which a transition may be drawn."""
        ...

    def forget(self) -> None:
        """Never again draw a row that has been written so far."""
        ...

    def save_priorities(self, values: npt.NDArray[np.float32], /) -> None:
        """The priorities of all places."""
        ...

    def load_priorities(self, values: npt.NDArray[np.float32], /) -> None:
        """Go on from them."""
        ...

    def counters(self) -> Any:
        """What happened to the rows so far."""
        ...

    def save_state(self, words: npt.NDArray[np.uint64], /) -> None:
        """What a successor needs."""
        ...

    def load_state(self, words: npt.NDArray[np.uint64], /) -> None:
        """Go on from there."""
        ...


class PolicySink(Protocol):
    """Where versions go."""

    @property
    def newest(self) -> int:
        """The newest version."""
        ...

    def publish(self, weights: npt.NDArray[np.float32], *, version: int | None = None, **header: Any) -> int:
        """Publish one version."""
        ...


@dataclass
class StackMember:
    """One policy of a stack, as its learner has it."""

    reader: RowReader
    steps: Callable[[], int]
    """How many steps its agents have done."""
    publisher: PolicySink
    batch: Any
    """The reader's batch, whose arrays are this policy's part of the stacked one."""
    stage: int = 0
    """The stage that was entered last."""
    resting: bool = False
    """Whether its replay was cleared, and has not got rows enough again."""
    waived: int = 0
    """Updates that became due while it rested, and are not made up for."""
    step: int = 0
    """Its steps in the newest version."""
    drawn: bool = False
    """Whether its batch has ever been filled."""

    @property
    def progress(self) -> tuple[int, int, int]:
        """Where it is in its stages, for the vault."""
        return self.stage, int(self.resting), self.waived

    def restore(self, stage: int, resting: int, waived: int) -> None:
        """Go on from what the vault holds."""
        self.stage, self.resting, self.waived = int(stage), bool(resting), int(waived)


def vault_header(policies: int, sizes: Sizes, reader_words: int) -> dict[str, tuple[tuple[int, ...], str]]:
    """What the vault of a stack holds beside the flat states: shape and dtype by name."""
    return {
        "counters": ((policies, sizes.counters), "int64"),
        "random": ((policies, max(sizes.random, 1)), "uint8"),
        "reader": ((policies, reader_words), "uint64"),
        "steps": ((policies,), "int64"),
        "stage": ((policies, 3), "int64"),
    }


def restore(algorithm: Algorithm, policies: Sequence[StackMember], vault: Any) -> int:
    """Go on from what the vault holds; ``vault`` is its subscriber, refreshed. Returns the version."""
    algorithm.state[...] = vault.weights.reshape(algorithm.state.shape)
    algorithm.counters[...] = vault["counters"]
    algorithm.random[...] = vault["random"][:, : algorithm.random.shape[1]]
    algorithm.load()
    for policy, words, progress, step in zip(policies, vault["reader"], vault["stage"], vault["steps"], strict=True):
        policy.reader.load_state(np.ascontiguousarray(words))
        policy.restore(*progress)
        policy.step = int(step)
    return int(vault.version)


def state_of(algorithm: Algorithm, policies: Sequence[StackMember]) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
    """Everything a successor needs, as the vault takes it: flat states, and the rest by name. Changes nothing."""
    algorithm.save()
    words = np.zeros((len(policies), policies[0].reader.state_words), np.uint64)
    for policy, row in zip(policies, words, strict=True):
        policy.reader.save_state(row)
    return algorithm.state.reshape(-1), {
        "counters": algorithm.counters,
        "random": algorithm.random if algorithm.random.size else np.zeros((len(policies), 1), np.uint8),
        "reader": words,
        "steps": np.array([policy.steps() for policy in policies], np.int64),
        "stage": np.array([policy.progress for policy in policies], np.int64),
    }


def learn(
    algorithm: Algorithm,
    policies: Sequence[StackMember],
    vault: PolicySink,
    settings: ReaderSettings,
    batch: Batch,
    publish_every: int = 1,
) -> Generator[Update | None, bool | Sequence[bool] | None, None]:
    """Publish what there is and yield None; then update for ever, once for each ``next``.

    ``send(due)``, with True or False for each policy, updates those that are due. The others stay as they are, bit for
    bit. ``send(True)`` keeps and publishes the present state instead, and so does closing.

    Args:
        algorithm: runs the stack; fresh, or restored from the vault.
        policies: one for each policy of the stack.
        vault: of the stack.
        settings: what the algorithm asked of the replay.
        batch: the stacked arrays that the policies' batches are parts of.
        publish_every: updates between versions; 1 where rows are read once, whatever is given.
    """
    if vault.newest == 0:
        _keep(algorithm, policies, vault)
    _hand_out(algorithm, policies, vault.newest, settings.once)
    every = 1 if settings.once else publish_every
    update: Update | None = None
    while True:
        try:
            asked = yield update
        except GeneratorExit:
            _keep(algorithm, policies, vault)
            _hand_out(algorithm, policies, vault.newest, settings.once)
            return
        if asked is True:
            update = None
        else:
            due = list(asked or [True] * len(policies))
            update = _update(algorithm, policies, settings, batch, due)
            counts = algorithm.counters[:, 0].tolist()
            if all(count % every for count, is_due in zip(counts, due, strict=True) if is_due):
                continue
        _keep(algorithm, policies, vault)
        _hand_out(algorithm, policies, vault.newest, settings.once)


def _update(
    algorithm: Algorithm,
    policies: Sequence[StackMember],
    settings: ReaderSettings,
    batch: Batch,
    due: Sequence[bool],
) -> Update:
    steps = [policy.steps() for policy in policies]
    for policy, step, is_due in zip(policies, steps, due, strict=True):
        if not is_due:
            continue
        if not settings.once:
            beta = value_at(settings.beta, step, settings.stages)
            policy.reader.sample(settings.batch_size, beta=beta, into=policy.batch)
        elif policy.reader.take(settings.batch_size, settings.length, into=policy.batch) is None:
            raise NotReadyError(
                f"an update needs {settings.batch_size} fragments of {settings.length} rows of each policy, which are "
                "not there yet: ask for it when they are"
            )
        policy.drawn = True
    update = algorithm.update(batch, steps) if all(due) else _update_some(algorithm, policies, batch, steps, due)
    if update.priorities is not None and settings.prioritised:
        for policy, priorities, is_due in zip(policies, update.priorities, due, strict=True):
            if is_due:
                policy.reader.update(policy.batch, priorities)
    return update


def _update_some(
    algorithm: Algorithm,
    policies: Sequence[StackMember],
    batch: Batch,
    steps: Sequence[int],
    due: Sequence[bool],
) -> Update:
    """One pass over the whole stack, after which the policies that are not due are put back to where they were."""
    model = due.index(True)
    others = [i for i, is_due in enumerate(due) if not is_due]
    for i in others:
        if not policies[i].drawn:  # nothing has been in its part of the batch: any rows will do, if the space has them
            for array in batch.arrays():
                array[i] = array[model]
            policies[i].drawn = True
    algorithm.save()
    parts: list[npt.NDArray[Any]] = [algorithm.state, algorithm.counters, algorithm.random]
    kept = [part[others] for part in parts]
    update = algorithm.update(batch, steps)
    algorithm.save()
    for part, rows in zip(parts, kept, strict=True):
        part[others] = rows
    algorithm.load()
    return update


def _keep(algorithm: Algorithm, policies: Sequence[StackMember], vault: PolicySink) -> None:
    """Everything a successor needs, as the next version of the vault."""
    state, header = state_of(algorithm, policies)
    for policy, step in zip(policies, header["steps"], strict=True):
        policy.step = int(step)
    vault.publish(state, **header)


def _hand_out(algorithm: Algorithm, policies: Sequence[StackMember], version: int, once: bool) -> None:
    """What follows once the vault holds a version: its rows go back to the writers, its weights to the actors.

    A successor repeats what its predecessor did not get to.
    """
    if once:
        for policy in policies:
            policy.reader.release()
    weights = algorithm.weights()
    for i, policy in enumerate(policies):
        if policy.publisher.newest < version:
            header = algorithm.header(policy.step, i)
            policy.publisher.publish(weights[i], version=version, published_step=policy.step, **header)

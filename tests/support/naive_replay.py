"""A replay and a naive model of it, a list of rows with the documented rules, driven by the same script."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from motet.replay import Batch, Field, Replay, ReplaySpec, Writer

GAMMA = 0.9


@dataclass
class Row:
    number: int  # what the row's arrays are made from
    begin: bool
    version: int
    terminated: bool = False
    truncated: bool = False
    final: bool = False

    @property
    def reward(self) -> float:
        return 0.0 if self.final else float(np.float32(0.1 * (self.number % 17) - 0.7))


class NaiveLane:
    """A list, and the rules of the documentation, word by word."""

    def __init__(self, capacity: int) -> None:
        self.rows: list[Row] = []
        self.capacity, self.begin, self.broken_at = capacity, True, set[int]()

    def append(self, numbers: list[int], version: int, end: str = "", final: int = 0) -> None:
        for number in numbers:
            self.rows.append(Row(number, self.begin, version))
            self.begin = False
        if end:
            self.rows[-1].terminated, self.rows[-1].truncated = end == "terminated", end == "truncated"
            self.rows.append(Row(final, False, version, final=True))
            self.begin = True

    def interrupt(self) -> None:
        self.begin = True
        if self.rows and not self.rows[-1].final:
            self.broken_at.add(len(self.rows))

    @property
    def tail(self) -> int:
        return max(0, len(self.rows) - self.capacity)

    def starts_here(self, i: int) -> bool:
        return not self.rows[i].final and not self.rows[i + 1].begin

    def starts(self, n_frames: int, n_step: int) -> list[int]:
        low = self.tail + n_frames - 1 if self.tail else 0
        return [i for i in range(low, len(self.rows) - n_step) if self.starts_here(i)]

    def sequence_starts(self, n_frames: int, n_step: int, length: int, burn_in: int, prioritised: bool) -> list[int]:
        low = self.tail + n_frames - 1 if self.tail else 0
        return [
            i
            for i in range(low, len(self.rows) - n_step - length + 1)
            if any(self.starts_here(j) for j in range(i + burn_in, i + length))
            and not (prioritised and i % (length - burn_in))
        ]

    def stack(self, i: int, n_frames: int) -> list[int]:
        frames = [i]
        while len(frames) < n_frames:
            i = i if self.rows[i].begin else i - 1
            frames.insert(0, i)
        return [self.rows[i].number for i in frames]

    def walk(self, i: int, n_step: int) -> tuple[int, float, float]:
        """Where the transition from i ends, its reward and its discount."""
        total, factor = 0.0, 1.0
        for step in range(1, n_step + 1):
            row = self.rows[i + step - 1]
            total += factor * row.reward
            factor *= GAMMA
            if row.terminated or row.truncated:
                return i + step, total, 0.0 if row.terminated else factor
            if step < n_step and not self.starts_here(i + step):
                break
        return i + step, total, factor


# ---- what a number looks like in every array of a row

SPEC: dict[str, Any] = {
    "observation": {"picture": Field((2, 2), "uint8"), "pair": (Field((3,), "float32"), Field((), "int16"))},
    "action": Field((2,), "int32"),
    "extra": {"mask": Field((3,), "bool", next=True), "logp": Field((), "float64")},
}


def observation(number: int) -> dict[str, Any]:
    picture = (np.arange(4).reshape(2, 2) + number).astype(np.uint8)
    return {"picture": picture, "pair": (np.full(3, number, np.float32), np.int16(number))}


def mask(number: int) -> np.ndarray:
    return np.array([number % 2, number % 3 == 0, True], bool)


def extra(number: int) -> dict[str, Any]:
    return {"mask": mask(number), "logp": -0.5 * number}


def action(number: int) -> np.ndarray:
    return np.array([number, -number], np.int32)


def stacked(numbers: list[Any]) -> dict[str, Any]:
    parts = [observation(n) if isinstance(n, int) else stacked(n) for n in numbers]
    return {
        "picture": np.stack([p["picture"] for p in parts]),
        "pair": tuple(np.stack([p["pair"][k] for p in parts]) for k in (0, 1)),
    }


def same(got: dict[str, Any], wanted: dict[str, Any]) -> None:
    np.testing.assert_array_equal(got["picture"], wanted["picture"])
    for k in (0, 1):
        np.testing.assert_array_equal(got["pair"][k], wanted["pair"][k])


class Both:
    """The real replay and the naive one, driven by the same script."""

    def __init__(self, lanes: int, capacity: int, **spec: Any) -> None:
        self.replay = Replay(ReplaySpec(**SPEC, capacity=capacity * lanes, lanes=lanes, **spec))
        self.writers: list[Writer] = [self.replay.writer(i, timeout_s=5) for i in range(lanes)]
        self.naive = [NaiveLane(capacity) for _ in range(lanes)]
        self.number = 0

    def next(self) -> int:
        self.number += 1
        return self.number

    def do(self, lane: int, verb: str, rows: int) -> None:
        writer, naive = self.writers[lane], self.naive[lane]
        if verb == "interrupt":
            writer.interrupt()
            naive.interrupt()
        elif verb == "successor":
            self.writers[lane] = self.replay.writer(lane, timeout_s=5)
            naive.interrupt()
        else:
            numbers, version = [self.next() for _ in range(rows)], self.number
            end: dict[str, Any] = {"terminated": {"terminated": True}, "truncated": {"truncated": True}}.get(verb, {})
            final = self.next() if end else 0
            if end:
                end |= {"final_observation": observation(final), "final_mask": mask(final)}
            rewards = [Row(n, False, 0).reward for n in numbers]
            if rows == 1:
                n = numbers[0]
                head = writer.append(observation(n), action(n), rewards[0], version=version, **extra(n), **end)
            else:
                head = writer.append_many(
                    stacked(numbers), np.stack([action(n) for n in numbers]), np.array(rewards, np.float32),
                    version=version, mask=np.stack([mask(n) for n in numbers]),
                    logp=np.array([-0.5 * n for n in numbers]), **end,
                )  # fmt: skip
            naive.append(numbers, version, verb if end else "", final)
            assert head == len(naive.rows)

    def check(self, batch: Batch, n_frames: int, n_step: int) -> None:
        """Every row of a sampled batch, against the model."""
        starts = [set(lane.starts(n_frames, n_step)) for lane in self.naive]
        wanted: dict[str, list[Any]] = {
            k: [] for k in ("stack", "next", "here", "there", "reward", "discount", "version")
        }
        for lane, row in zip(batch.lane.tolist(), batch.row.tolist(), strict=True):
            naive = self.naive[lane]
            assert row in starts[lane], f"row {row} of lane {lane} is no start of {sorted(starts[lane])}"
            end, reward, discount = naive.walk(row, n_step)
            wanted["stack"].append(naive.stack(row, n_frames) if n_frames > 1 else naive.rows[row].number)
            wanted["next"].append(naive.stack(end, n_frames) if n_frames > 1 else naive.rows[end].number)
            wanted["here"].append(naive.rows[row].number)
            wanted["there"].append(naive.rows[end].number)
            wanted["reward"].append(reward)
            wanted["discount"].append(discount)
            wanted["version"].append(naive.rows[row].version)
        same(batch.observation, stacked(wanted["stack"]))
        same(batch.next_observation, stacked(wanted["next"]))
        np.testing.assert_array_equal(batch.action, np.stack([action(n) for n in wanted["here"]]))
        np.testing.assert_array_equal(batch.extra["mask"], np.stack([mask(n) for n in wanted["here"]]))
        np.testing.assert_array_equal(batch.extra["logp"], [-0.5 * n for n in wanted["here"]])
        np.testing.assert_array_equal(batch.next_extra["mask"], np.stack([mask(n) for n in wanted["there"]]))
        assert "logp" not in batch.next_extra
        np.testing.assert_array_equal(batch.reward, np.array(wanted["reward"], np.float32))
        np.testing.assert_array_equal(batch.discount, np.array(wanted["discount"], np.float32))
        np.testing.assert_array_equal(batch.version, wanted["version"])


VERBS = ["step"] * 5 + ["terminated", "truncated", "interrupt", "successor"]
SCRIPTS = st.lists(st.tuples(st.integers(0, 1), st.sampled_from(VERBS), st.sampled_from([1, 1, 2, 4])), max_size=40)

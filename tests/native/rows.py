"""Writes values of all kinds to a replay and prints what becomes of each, however arrays are read.

The first line says how arrays are read, the others (a row's number or an error for each value, and at the end a hash of
the lanes and of batches) must be the same either way.
"""

import hashlib

import numpy as np

from motet import _native
from motet.errors import SpecError
from motet.replay import Field, Replay, ReplaySpec

FIELDS = {
    "uint8": (2, 3),
    "float32": (5,),
    "float64": (2, 2),
    "float16": (3,),
    "bool": (4,),
    "int64": (2,),
    "int32": (),
}
ROWS = 300


class Sub(np.ndarray):
    """Not exactly an array."""


CHANGES = {
    "as it is": lambda a: a,
    "a copy": lambda a: a.copy(),
    "a subclass": lambda a: a.view(Sub),
    "a buffer": memoryview,
    "read-only": lambda a: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape),
    "an equal dtype": lambda a: a.view(np.dtype(a.dtype, metadata={"equal": "not the same"})),
    "in another order": np.asfortranarray,
    "strided": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    "shorter": lambda a: a[..., :1],
    "of another rank": lambda a: a[None],
    "in another byte order": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "another dtype": lambda a: a.astype("complex64"),
    "infinite": lambda a: np.full_like(a, np.inf) if a.dtype.kind == "f" else a,
    "a list": lambda a: a.tolist(),
}


def main() -> None:
    """Write, print, and print a hash of everything."""
    print(_native.DIRECT_ARRAYS)  # noqa: T201
    observation = {dtype: Field(shape, dtype) for dtype, shape in FIELDS.items()}
    replay = Replay(ReplaySpec(observation=observation, action=Field((2,)), capacity=256, lanes=2))
    one, many = replay.writer(0), replay.writer(1)
    rng = np.random.default_rng(1)

    def values(*rows: int):
        return {dtype: (rng.random((*rows, *shape)) * 2).astype(dtype) for dtype, shape in FIELDS.items()}

    for i in range(ROWS):
        name = list(CHANGES)[i % len(CHANGES)]
        for writer, rows in ((one.append, ()), (many.append_many, (3,))):
            given, last = values(*rows), values()
            changed = list(FIELDS)[rng.integers(len(FIELDS))]
            if given[changed].ndim:
                given[changed] = CHANGES[name](given[changed])
            row = {"observation": given, "action": np.ones((*rows, 2), "float32"), "reward": np.ones(rows, "float32")}
            row["reward"] = row["reward"] if rows else 1.0
            if rng.random() < 0.2:
                row |= {"terminated": True, "final_observation": last}
            try:
                print(name, changed, writer(**row))  # noqa: T201
            except SpecError as error:
                print(name, changed, error)  # noqa: T201
    hashed = hashlib.sha256()
    for lane in range(2):
        hashed.update(replay.dump(lane).tobytes())
    batch = replay.reader(n_step=2, seed=1).sample(64)
    for dtype in FIELDS:
        hashed.update(batch.observation[dtype].tobytes())
        hashed.update(batch.next_observation[dtype].tobytes())
    print(hashed.hexdigest())  # noqa: T201


if __name__ == "__main__":
    main()

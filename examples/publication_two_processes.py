"""Use a publication on its own: a learner publishes weights, an actor in another process loads the newest.

All values of one version stay together: the actor checks that every version it holds is complete.
"""

import multiprocessing
import os
import sys

import numpy as np

from motet.arrays import ArraySpec
from motet.publication import Publication

VERSIONS = 20_000


def learn(publication: Publication) -> None:
    """Publish as fast as possible; every weight is the version number."""
    publisher = publication.publisher()
    weights = np.zeros(publication.weights, np.float32)
    for version in range(1, VERSIONS + 1):
        weights[:] = version
        publisher.publish(weights, epsilon=1 / version, stage=version // 1000)


def main() -> None:
    """Run the actor, which never waits for a write and never holds a partial version."""
    header = {"epsilon": ArraySpec(dtype="float64"), "stage": ArraySpec(dtype="int64")}
    publication = Publication(weights=10_000, header=header, slots=2)
    context = multiprocessing.get_context("spawn")
    learner = context.Process(target=learn, args=(publication,))
    learner.start()
    print(f"actor {os.getpid()}, learner {learner.pid}")

    subscriber = publication.subscriber()
    taken = skipped = 0
    while subscriber.version < VERSIONS:
        if not subscriber.wait(60):
            raise SystemExit("the learner has published nothing for a minute")
        before = subscriber.version
        if not subscriber.refresh():
            continue  # the read coincided with a write: the version held stays valid
        version = subscriber.version
        assert (subscriber.weights == version).all() and subscriber["epsilon"] == 1 / version
        taken, skipped = taken + 1, skipped + version - before - 1
        if taken % 2000 == 1:
            print(f"version {version:6d}  stage {subscriber['stage']:2d}  epsilon {subscriber['epsilon']:.5f}")
    learner.join()
    print(f"{taken} versions taken whole, {skipped} skipped, {subscriber.met_writes} reads that coincided with a write")


if __name__ == "__main__":
    sys.exit(main())

"""Learn to empower two humans in a corridor of bushes, and compare the robot with the exact one. Takes a minute."""

import functools
import sys
import tempfile

from motet import Settings, train
from motet.algorithms import EmpowerConfig
from motet.evaluation.exact import compare_exact
from motet.schedule import Linear, Staged, Stages
from motet.worlds import Bushes

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 16_000
fifth = steps // 5  # updates; there is about one for each step
config = EmpowerConfig(
    stages=Stages({"attainment": fifth, "values": fifth, "ramp": fifth, "full": None}, ("ramp", "full"), by="updates"),
    beta=Staged({"attainment": 0.0, "values": 0.0, "ramp": Linear(0.0, 5.0, fifth), "full": 5.0}),
)
settings = Settings(steps=steps, actors=2, updates_per_step=1.0)

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as run:
        result = train(functools.partial(Bushes, horizon=4), config, settings, run=run)
        print(f"done after {result.steps:,} steps and {result.updates['robot_0']:,} updates, in {result.seconds:.0f} s")
        print(compare_exact(run))

"""Exact planning for small worlds: enumerate all states, solve by backward induction, use the solution.

::

    model ──enumerate_states──▶ Graph ──solve──────────▶ Solution ──▶ policies, values, pictures
                                      ──solve_robot────▶   "        for given policies of the humans
                                      ──evaluate_robot─▶   "        for a given policy of the robot too
                                      ──best_response──▶ Response ──▶ regret of a learner

A model is any object that gives the successor states of a joint action and their probabilities (:class:`Model`).
All functions use as many cores as make them faster, on one machine or on a Ray cluster. The result is the same, bit for
bit, for any number of cores.
"""

from motet.plan.behaviour import Humans, Robot
from motet.plan.chain import Chain
from motet.plan.empowerment import evaluate_robot, solve, solve_robot
from motet.plan.enumeration import enumerate_states
from motet.plan.goals import Goal
from motet.plan.graph import Graph, Model
from motet.plan.induction import Response, best_response
from motet.plan.losses import Regret, regret
from motet.plan.progress import Progress
from motet.plan.solution import PlannedPolicy, Solution

__all__ = [
    "Chain",
    "Goal",
    "Graph",
    "Humans",
    "Model",
    "PlannedPolicy",
    "Progress",
    "Regret",
    "Response",
    "Robot",
    "Solution",
    "best_response",
    "enumerate_states",
    "evaluate_robot",
    "regret",
    "solve",
    "solve_robot",
]

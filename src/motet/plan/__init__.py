"""Small worlds solved exactly: enumerate what can happen, solve it backwards, use the answer.

::

    model ──enumerate_states──▶ Graph ──solve──────────▶ Solution ──▶ policies, values, pictures
                                      ──best_response──▶ Response ──▶ regret of a learner

A model is any object that can say what may follow on a joint action (:class:`Model`). Everything here runs over as many
cores as are worth it, on one machine or on a Ray cluster, and gives the same bits for any number of them.
"""

from motet.plan.empowerment import Humans, Robot, solve
from motet.plan.enumeration import enumerate_states
from motet.plan.goals import Goal
from motet.plan.graph import Graph, Model
from motet.plan.induction import Response, best_response
from motet.plan.progress import Progress
from motet.plan.regret import Regret, regret
from motet.plan.solution import PlannedPolicy, Solution

__all__ = [
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
    "regret",
    "solve",
]

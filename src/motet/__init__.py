"""motet: asynchronous multi-agent reinforcement learning.

This package exports the public functions and classes. Each is imported on first use, so that importing motet imports
neither torch nor ray.
"""

from typing import TYPE_CHECKING

from motet._lazy import lazily
from motet._version import __version__
from motet.system.preload import preload as _preload

if TYPE_CHECKING:
    from motet.errors import MotetError
    from motet.evaluation.evaluate import EvaluationSettings, evaluate
    from motet.evaluation.focal import FocalEvaluation, evaluate_focal
    from motet.evaluation.regret import regret
    from motet.evaluation.result import Evaluation
    from motet.evaluation.tournament import Tournament, tournament
    from motet.pace import Pace
    from motet.placement import Cluster
    from motet.policies.entries import load_policies
    from motet.policies.export import export
    from motet.policies.limits import PolicyLimits
    from motet.policies.partner import Partner
    from motet.publication import Publication
    from motet.replay import Field, Replay, ReplaySpec
    from motet.reports.report import report
    from motet.runs.history import read_run
    from motet.system.supervisor import RestartLimits
    from motet.training.callbacks import StopRun
    from motet.training.league import League
    from motet.training.run import resume, train
    from motet.training.seeds import train_seeds
    from motet.training.settings import AgentSettings, Settings
    from motet.world import World, as_world

__all__ = [
    "AgentSettings",
    "Cluster",
    "Evaluation",
    "EvaluationSettings",
    "Field",
    "FocalEvaluation",
    "League",
    "MotetError",
    "Pace",
    "Partner",
    "PolicyLimits",
    "Publication",
    "Replay",
    "ReplaySpec",
    "RestartLimits",
    "Settings",
    "StopRun",
    "Tournament",
    "World",
    "__version__",
    "as_world",
    "evaluate",
    "evaluate_focal",
    "export",
    "load_policies",
    "read_run",
    "regret",
    "report",
    "resume",
    "tournament",
    "train",
    "train_seeds",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "AgentSettings": "motet.training.settings",
        "Cluster": "motet.placement",
        "Evaluation": "motet.evaluation.result",
        "EvaluationSettings": "motet.evaluation.evaluate",
        "Field": "motet.replay",
        "FocalEvaluation": "motet.evaluation.focal",
        "League": "motet.training.league",
        "MotetError": "motet.errors",
        "Pace": "motet.pace",
        "Partner": "motet.policies.partner",
        "PolicyLimits": "motet.policies.limits",
        "Publication": "motet.publication",
        "Replay": "motet.replay",
        "ReplaySpec": "motet.replay",
        "RestartLimits": "motet.system.supervisor",
        "Settings": "motet.training.settings",
        "StopRun": "motet.training.callbacks",
        "Tournament": "motet.evaluation.tournament",
        "World": "motet.world",
        "as_world": "motet.world",
        "evaluate": "motet.evaluation.evaluate",
        "evaluate_focal": "motet.evaluation.focal",
        "export": "motet.policies.export",
        "load_policies": "motet.policies.entries",
        "read_run": "motet.runs.history",
        "regret": "motet.evaluation.regret",
        "report": "motet.reports.report",
        "resume": "motet.training.run",
        "tournament": "motet.evaluation.tournament",
        "train": "motet.training.run",
        "train_seeds": "motet.training.seeds",
    },
)

# Modules that every child process needs. Importing them takes 0.2 s per process, and seconds with torch, so the fork
# server imports them once.
_preload(
    *("numpy", "cloudpickle", "gymnasium", "pettingzoo", "motet.system.child", "motet.training.drivers"),
    *(f"motet.worlds.{name}" for name in ("cleanup", "hockey", "matrix", "rooms", "small_hunt", "treasure_hunt")),
    *("motet.isolation.process", "torch"),
    *(f"motet.algorithms.{name}" for name in ("_dqn_learner", "_iqn_learner", "_ppo_learner", "_td3_learner")),
    "motet.system.quick_exit",
)

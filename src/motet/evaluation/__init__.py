"""Evaluations and tournaments: policies play episodes. The results depend only on the seed."""

from typing import TYPE_CHECKING

from motet._lazy import lazily

if TYPE_CHECKING:
    from motet.evaluation.evaluate import EvaluationSettings
    from motet.evaluation.focal import FocalEvaluation
    from motet.evaluation.result import Evaluation
    from motet.evaluation.tournament import Tournament

__all__ = ["Evaluation", "EvaluationSettings", "FocalEvaluation", "Tournament"]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "Evaluation": "motet.evaluation.result",
        "EvaluationSettings": "motet.evaluation.evaluate",
        "FocalEvaluation": "motet.evaluation.focal",
        "Tournament": "motet.evaluation.tournament",
    },
)

"""Check users' worlds, models, policies and algorithms against motet's contracts, in the users' test suites."""

from motet.testing.algorithm import check_algorithm, check_policy
from motet.testing.model import check_model
from motet.testing.world import check_world

__all__ = ["check_algorithm", "check_model", "check_policy", "check_world"]

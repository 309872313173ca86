"""Checks of users' own classes against motet's contracts, for their test suites."""

from motet.testing.algorithm import check_algorithm, check_policy
from motet.testing.world import check_world

__all__ = ["check_algorithm", "check_policy", "check_world"]

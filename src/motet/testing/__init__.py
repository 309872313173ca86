"""Check users' worlds, models, policies, networks and algorithms against motet's contracts, in users' tests."""

from motet.testing.algorithm import check_algorithm, check_policy
from motet.testing.model import check_model
from motet.testing.network import check_network
from motet.testing.world import check_world

__all__ = ["check_algorithm", "check_model", "check_network", "check_policy", "check_world"]

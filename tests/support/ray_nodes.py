"""A Ray cluster for one test: no processes in advance, none that stands back; a node that ends is noticed soon, a slow
one has time."""

from contextlib import contextmanager

import pytest

QUICK = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_worker_niceness": "0",
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "20000",
    "RAY_health_check_failure_threshold": "3",
}


@contextmanager
def ray_nodes(size, nodes=1, **environment):
    """So many nodes of one size, the driver on the first; they have the environment too, and are gone afterwards."""
    ray = pytest.importorskip("ray", reason="motet[ray] is not installed: nothing of the cluster is tested")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**QUICK, **environment}.items():
            patch.setenv(name, value)
        cluster = Cluster(initialize_head=True, head_node_args={**size, "include_dashboard": False})
        try:
            for _ in range(nodes - 1):
                cluster.add_node(**size)
            ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()

"""Policies in separate processes, with limits, a guard and a sandbox."""

from typing import TYPE_CHECKING

from motet._lazy import lazily

if TYPE_CHECKING:
    from motet.isolation.policy import IsolatedPolicy, sandbox_gaps
    from motet.policies.limits import PolicyLimits

__all__ = ["IsolatedPolicy", "PolicyLimits", "sandbox_gaps"]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "IsolatedPolicy": "motet.isolation.policy",
        "PolicyLimits": "motet.policies.limits",
        "sandbox_gaps": "motet.isolation.policy",
    },
)

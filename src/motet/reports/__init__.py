"""Self-contained HTML pages about runs, evaluations and tournaments."""

from typing import TYPE_CHECKING

from motet._lazy import lazily

if TYPE_CHECKING:
    from motet.reports.report import Report

__all__ = ["Report"]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "Report": "motet.reports.report",
    },
)

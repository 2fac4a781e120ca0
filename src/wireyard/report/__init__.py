"""The report: a page about the traffic of inputs or of a lake, with the query of each number."""

from __future__ import annotations

from wireyard.report.page import build_report

__all__ = ["build_report"]

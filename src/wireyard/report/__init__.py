"""One page about the traffic of inputs or of a lake, to look at, to print and to check."""

from __future__ import annotations

from wireyard.report.page import ReportError, build_report

__all__ = ["ReportError", "build_report"]

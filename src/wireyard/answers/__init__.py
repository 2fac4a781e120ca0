"""SQL queries over captures, streams, stores and lakes, without Spark."""

from __future__ import annotations

from wireyard.answers.tables import Tables, open_tables

__all__ = ["Tables", "open_tables"]

"""The tables of captures, streams, stores and lakes, to be asked with SQL, without Spark."""

from __future__ import annotations

from wireyard.answers.tables import Tables, open_tables

__all__ = ["Tables", "open_tables"]

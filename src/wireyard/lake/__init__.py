"""A lake of Parquet tables: its commits, for readers, and the writer that `pipeline` uses."""

from __future__ import annotations

from wireyard.errors import LakeDamaged, LakeError
from wireyard.lake.snapshot import LakeSnapshot, read_lake

__all__ = ["LakeDamaged", "LakeError", "LakeSnapshot", "read_lake"]

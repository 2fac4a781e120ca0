"""A lake as its commits describe it, to be read without Spark; `wireyard.spark` writes it."""

from __future__ import annotations

from wireyard.lake.commits import LakeError
from wireyard.lake.snapshot import LakeSnapshot, read_lake

__all__ = ["LakeError", "LakeSnapshot", "read_lake"]

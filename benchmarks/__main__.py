"""``python -m benchmarks [NAME...]``: run all benchmarks, or those named; each prints a table."""

from __future__ import annotations

import sys
from importlib import import_module

NAMES = (
    "jmq",
    "gpacket",
    "mqtt",
    "captures",
    "connections",
    "layers",
    "jmq_facts",
    "spark_source",
    "run_bronze",
    "lake_sizes",
)

for name in sys.argv[1:] or NAMES:
    import_module(f"benchmarks.{name}").main()

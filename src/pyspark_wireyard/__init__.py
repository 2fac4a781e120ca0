"""Make ``spark.read.format("wireyard")`` work without a registration.

Spark imports every installed top-level module called ``pyspark_*`` when it first looks for a data
source, in a process of its own. This one has to be light and must not fail: one that fails hides
the data sources of all the others.
"""

from wireyard.spark.source import WireyardSource as DefaultSource

__all__ = ["DefaultSource"]

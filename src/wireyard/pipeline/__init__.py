"""The pipeline from inputs to the tables of a lake, without Spark."""

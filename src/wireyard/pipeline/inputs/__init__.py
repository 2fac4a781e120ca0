"""The inputs of a run: found, identified, watched, and divided into tasks."""

"""Detection of the format of each stream."""

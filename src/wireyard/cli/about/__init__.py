"""Commands about wireyard itself: what it needs, which formats it reads, completion, dissectors."""

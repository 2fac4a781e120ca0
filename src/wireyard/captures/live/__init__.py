"""Captures whose records are still arriving."""

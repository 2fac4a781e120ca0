"""Inputs that grow: their parts, commits of these, and facts in the meantime."""

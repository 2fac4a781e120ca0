"""Decoding: inputs to the tables of packets, which are called bronze."""

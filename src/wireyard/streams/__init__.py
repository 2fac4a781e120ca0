"""Directed byte streams of any format: framing, decoding, scanning, splitting, writing."""

"""Connections of TCP and UDP, and the streams that are reassembled from their packets."""

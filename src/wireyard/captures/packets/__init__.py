"""Packets: their headers down to the transport, fragments, and a table of segments."""

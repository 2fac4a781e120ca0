"""Capture files: pcap and pcapng, whole, in extents, or still written."""

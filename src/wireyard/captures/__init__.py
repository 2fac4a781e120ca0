"""Captures as directed streams: pcap and pcapng, link layers, IP fragments, TCP and UDP."""

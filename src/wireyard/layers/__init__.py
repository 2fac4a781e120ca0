"""The behaviour of packets apart from sockets: state machines, and the port between formats."""

"""The MQTT clients of a recording again, to another broker.

- ``script``: what clients and broker of a recording did, in order
- ``player``: the clients' part of it on sockets, each step at its time and after what came before
"""

"""The clients of a recording again, to another broker.

- ``script``: what clients and broker of a recording did, in order
- ``mqtt``, ``jmq``: what they say now, with the numbers and ids that this broker gives
- ``migration``: what JMQ clients did, as clients of MQTT; ``emigration``: the other way
- ``player``: the clients' part of it on sockets, each step at its time and after what came before
"""

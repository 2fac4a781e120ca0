"""The clients of a recording again, to another broker of MQTT.

- ``script``: what clients and broker of a recording did, in order
- ``migration``: what its JMQ clients did, as clients of MQTT
- ``player``: the clients' part of it on sockets, each step at its time and after what came before
"""

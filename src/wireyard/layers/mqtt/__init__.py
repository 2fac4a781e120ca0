"""MQTT: sessions, deliveries, retained values and violations, from the packets of both sides.

`columns` has the stages and derives all tables. The modules:

- ``directions``, ``evidence``: which stream of a connection the client sends
- ``packets``, ``rare``: packets as integers
- ``tracking``: follows all packets of clients in one call of its kernel, with those of connections,
  sessions, requests and messages; its arrays are in ``grids``, its results in ``tracked``
- ``connection``, ``qos``: the state tables; ``violations``: the rules that only several packets
  together can break
- ``published``, ``retained``, ``delivery_columns``: messages, retained values, and the deliveries
  that are expected and those that happened
- ``missing``: the reasons for deliveries that did not happen
- ``messages``: the table of messages
- ``rules``: the rules by which all this follows, with their numbers
- ``files``, ``newest``: the same for packets in files, and for the newest ones
"""

"""MQTT: sessions, deliveries, retained values and violations, from the packets of both sides.

`columns` has the stages and derives all tables. The modules:

- ``directions``, ``evidence``: which stream of a connection the client sends
- ``packets``, ``tracking``: packets as integers, and the messages of clients packet by packet, with
  ``qos_kernels`` and, for short connections, ``plain``
- ``observer``: the other packets of a client, with ``connection``, ``session``, ``subscriptions``
  and ``will``
- ``qos``: the flows of QoS 1 and 2 as state tables; ``violations``: the rules that only several
  packets together can break
- ``published``, ``retained``, ``delivery_columns``: messages, retained values, and the deliveries
  that are expected and those that happened
- ``missing``: the reasons for deliveries that did not happen
- ``messages``, ``rows``: rows of the tables
- ``files``, ``newest``: the same for packets in files, and for the newest ones
"""

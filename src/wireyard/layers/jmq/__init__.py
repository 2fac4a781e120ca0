"""JMQ conversations: logins, requests and replies, transactions, and deliveries of messages.

The input is columns of packets, the output is tables of facts. Nothing opens a socket or reads a
clock. The modules:

- ``states``: the state tables; ``rules``: what packets do, the rules that they can break, limits
- ``columns``: the phases, and their keys; ``files``: the same on files of
  packets, and the rows of messages
- ``packet_columns``, ``packet_row``, ``record_columns``: how packets and records are read
- ``tracking``, ``connection_columns``: connections by their packets, with the kernel in ``kernels``
- ``transaction_columns``, ``message_columns``, ``hops``: the later phases
- ``points``, ``clocks``: messages of several captures, and the clock offsets between these
- ``newest``: the rules for messages of a growing input
- ``waiting``: queries for messages that wait; ``symptoms``: problems, each with its query
"""

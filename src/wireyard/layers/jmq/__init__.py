"""JMQ conversations: logins, requests and replies, transactions, and deliveries of messages.

The input is rows of packets in the order of time, the output is facts. Nothing opens a socket or
reads a clock. The modules:

- ``session``: the states of a connection, from HELLO to GOODBYE
- ``sender``, ``receiver``: the two halves of a connection; ``consumers``, ``delivery``: the
  messages that consumers hold; ``flow``: pauses
- ``requests``: packets that want a reply; ``conversations``: JMS requests and their replies
- ``transaction``: transactions; ``sequences``: the sequence numbers of a sender
- ``hops``, ``clocks``: the hops of a message, and the clock offsets between capture points
- ``observer``: packets by connection; ``chain``: the stages, and their keys

``columns`` and the modules that it imports do the same on columns.
"""

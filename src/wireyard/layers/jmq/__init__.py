"""JMQ conversations: logins, requests and replies, transactions, and where messages went.

Packets come in as rows, in the order of time, and facts come out; nothing opens a socket or reads a
clock. Where what is decided:

- ``session``: what a connection may do when, from HELLO to GOODBYE
- ``sender``, ``receiver``: what clients send and consume; ``consumers``, ``delivery``: what a
  consumer holds; ``flow``: who may not send for a while
- ``requests``: packets that want a reply; ``conversations``: JMS requests and their replies
- ``transaction``; ``sequences``: the numbers of a sender; ``hops``, ``clocks``: what a hop took
- ``walk``: packets by connection; ``chain``: the stages, and their keys

``columns`` and what it imports do the same over columns.
"""

"""The kernel that tracks JMQ connections, packet by packet, on integer columns.

The state tables and the handlers of packets are arrays (``codes``). The state has one slot for each
key that packets name (a consumer, a request id, a held message), so the kernel needs no lookups and
no allocations (``state``). ``connections`` has the kernel, and requests with their replies;
``consumers`` has what packets do to consumers and their messages; ``sessions`` has what they do to
a connection as a whole.

Rules of these files:

1. A row is the index of a packet in the columns; -1 is none. A code is the index of a text.
2. Slots that must be kept in the order of insertion are doubly linked lists.
3. The kernel returns as soon as an output buffer may become full; the next call continues there.
4. `p` are the packets, `q` the properties of control packets, `c` is the connection of the row, and
   `at` the index of the row's properties, -1 for none.
5. A request takes effect when it is settled: by its reply, or at once if it wants none.
"""

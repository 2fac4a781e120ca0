"""The JMQ half of the broker, for clients of Open MQ.

- ``core``: connections and logins, without sockets and clocks
- ``requests``, ``parts``, ``transactions``: what each request does
- ``routing``: from messages to consumers, over ``destinations``, with their names, and
  ``connections``
- ``persistence``: what outlives the process
- ``selector``: conditions on messages
"""

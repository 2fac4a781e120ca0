"""The JMQ half of the broker, for clients of Open MQ.

- ``core``: connections and logins, without sockets and clocks
- ``requests``, ``parts``, ``messages``, ``transactions``: what each request does
- ``answers``: how it is answered
- ``routing``: from messages to consumers, over ``destinations`` and ``connections``
- ``selector``, ``conditions``: conditions on messages
- ``names``: names, and what they are in the list of access
- ``limits``: what a client may have
"""

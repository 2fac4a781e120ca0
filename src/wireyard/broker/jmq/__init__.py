"""The JMQ half of the broker, for clients of Open MQ.

- ``core``: connections and logins, without sockets and clocks
- ``requests``, ``transactions``: what each request does; ``answers``: how it is answered
- ``routing``: from messages to consumers, over ``destinations`` and ``connections``
- ``selector``: conditions on messages; ``names``: names, and what they are as topics of MQTT
- ``mapper``: the port mapper
"""

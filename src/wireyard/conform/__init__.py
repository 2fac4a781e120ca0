"""Whether a broker keeps the rules of MQTT, found out by small conversations with it.

- ``packets``: broken packets, each against one rule
- ``talk``: what clients do, and what the broker has to do then
- ``rules``, ``messages``, ``sessions``, ``conversations``: the rules, and a conversation for each
- ``judging``: the conversations played to a broker, and what was not as it has to be
"""

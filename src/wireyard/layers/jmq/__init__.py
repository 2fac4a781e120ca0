"""JMQ conversations: logins, requests and replies, transactions, and where messages went.

Sans-IO: packets come in as rows, in the order of time, and facts come out. `chain.py` says how the
steps follow each other, and by which key each is dealt out; the tables of states are in
``session.py``, ``delivery.py``, ``transaction.py`` and ``flow.py``.
"""

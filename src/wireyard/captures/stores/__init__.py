"""Open MQ's file stores: their records, the packets in them, and an account of every byte."""

"""A transparent proxy for MQTT and JMQ that records, shows and disturbs what passes."""

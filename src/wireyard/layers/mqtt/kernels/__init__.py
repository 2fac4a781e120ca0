"""Kernels that follow clients of MQTT, packet by packet, and deliver their messages."""

"""Typed messages between daemon and agents, over ZeroMQ with CURVE."""

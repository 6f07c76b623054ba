"""daemon ↔ agents: typed messages over pyzmq with CURVE."""

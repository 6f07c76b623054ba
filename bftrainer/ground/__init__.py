"""The ground all rooms stand on: what workers, agents, daemon and command have to agree on.

Messages between an agent and its workers (``protocol``), the fence before checkpoints, their file
format, ports, errors of a training script. A user's interpreter imports these modules through
``elastic.finder``, so they need nothing but the standard library of Python 3.10.
"""

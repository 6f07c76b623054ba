"""Trains the network of the policy dl2, beside the daemon (``bftrainer policy train``).

``journal`` or ``drawn`` make episodes; ``lessons`` are a teacher's decisions as single steps;
``rollouts`` let the network learn from what its own decisions lead to; ``course`` is the whole way,
with the judgement whether a new network may replace what there is.
"""

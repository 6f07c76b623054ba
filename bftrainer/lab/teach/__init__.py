"""Trains the network of the policy dl2, beside the daemon (``bftrainer policy train``).

``course`` draws episodes or reads them from a journal, and goes from there to the trained network,
with its rollouts and the judgement whether it may replace the old one; ``learner`` updates it.
"""

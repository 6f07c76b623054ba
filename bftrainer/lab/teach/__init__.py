"""Trains the network of the policy dl2, beside the daemon (``bftrainer policy train``).

``episodes`` draws episodes and plays them; ``lessons`` reads episodes and a teacher's decisions, as
single steps, from a journal; ``learner`` updates the network; ``course`` goes from the source to
the trained network, with its rollouts and the judgement whether it may replace the old one.
"""

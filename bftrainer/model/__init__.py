"""Plain data that every package reads: cluster, trainers, decisions, views.

Imports nothing of bftrainer outside this package, and of ``milp`` only its problem types.
"""

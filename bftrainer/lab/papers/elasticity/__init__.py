"""Repeat section 7 of "Resource Elasticity in Distributed Deep Learning": Figs. 6 to 8 and 10.

Or, Zhang and Freedman, MLSys 2020. ``simulator`` trains a job that asks the rule of the policies
``throughput-scaling`` and ``utility`` for its size, and one with stragglers; ``replays`` plays an
experiment; ``figures`` has the findings.
"""

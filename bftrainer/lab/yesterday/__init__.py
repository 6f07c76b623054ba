"""The effect of a change of the policy: the past of a daemon, or a trace, replayed twice.

``journal`` makes a trace and a workload of a daemon's journal, ``comparison`` replays them with
each policy. ``bftrainer policy test`` calls both.
"""

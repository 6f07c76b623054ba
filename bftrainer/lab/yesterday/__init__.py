"""What a change of the policy would have done: the past of a daemon, or a trace, replayed twice.

``journal`` makes a trace and a workload of a daemon's journal, ``compared`` replays them with each
policy. ``bftrainer policy test`` calls both.
"""

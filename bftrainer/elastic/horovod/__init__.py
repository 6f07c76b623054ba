"""The worker of runtime ``horovod``: runs an unmodified Horovod script under our agents.

Runs in the user's process, a fork of the warm template, and imports only the standard library,
torch, the user's Horovod and ``bftrainer.elastic``.
"""

"""The worker of runtime ``horovod``: a Horovod script as it is, under our agents.

Runs in the user's process, in a fork of the warm template. Standard library, torch and
the user's own Horovod; nothing else of ours but ``bftrainer.elastic``.
"""

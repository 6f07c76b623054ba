"""The parts of an update: losses, gradients and their averages, votes, comparisons of members.

Not the loop that applies it (``loop``, ``elastic.run``).
"""

"""A script's own: its models, optimizers and schedules, and the batch that it declares.

Also what of torch and Accelerate is used that they do not promise. Not the samples (``data``), nor
what all members have in common (``state``).
"""

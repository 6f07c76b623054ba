"""The state that all members have in common: its copy, its writer, its way to another member.

Not the format of checkpoints (``checkpoints``), nor when members exchange it (``loop``).
"""

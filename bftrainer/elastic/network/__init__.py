"""The process groups of a generation: how they form and end, collectives, meshes of shards.

Not what is sent through them (``state``, ``gradients``).
"""

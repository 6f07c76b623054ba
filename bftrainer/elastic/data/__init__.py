"""The samples: the loader's shares of global batches, and whether members see the same samples.

Not the declaration of the batch (``script``).
"""

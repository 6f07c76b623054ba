"""Adapters for training loops that somebody else owns: Hugging Face, Lightning.

Each is a module of its own, imported by the script that uses it; none is imported by
``bftrainer.elastic`` itself, and none of the libraries is required. See
docs/howto/train-huggingface-lightning.md.
"""

import os

from bftrainer.elastic import control

if control.is_worker():
    # To a framework these mean that torchrun started it, and it would form a group of its own.
    for _name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        os.environ.pop(_name, None)

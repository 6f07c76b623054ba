"""Adapters for the training loops of Hugging Face and Lightning, and Optuna's objectives.

Each is a module that the script imports; ``bftrainer.elastic`` itself imports none of them, and
none of the libraries is required. See docs/howto/train-huggingface-lightning.md.
"""

import os

from bftrainer.elastic.process import control

if control.is_worker():
    # Frameworks take these as a sign of torchrun and would form a process group of their own.
    for _name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        os.environ.pop(_name, None)

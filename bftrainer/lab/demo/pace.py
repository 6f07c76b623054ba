"""Runs a training script as if its node needed a given time for each sample.

``pace.py MS_PER_SAMPLE SCRIPT [ARGS]...``: the nodes of the demonstration share one machine; with
a fixed time per sample, twice as many nodes are twice as fast, as on a cluster. Only forward passes
in training are slowed down. Imports nothing but torch.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from typing import Any

import torch
from torch.nn.modules import module as hooks


class PacedSteps:
    """Sleeps in front of the outermost module of each training step."""

    def __init__(self, s_per_sample: float) -> None:
        self._s_per_sample = s_per_sample
        self._depth = 0
        hooks.register_module_forward_pre_hook(self._enter)
        hooks.register_module_forward_hook(self._leave, always_call=True)

    def _enter(self, module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        self._depth += 1
        if self._depth == 1 and module.training and inputs and isinstance(inputs[0], torch.Tensor):
            time.sleep(self._s_per_sample * len(inputs[0]))

    def _leave(self, _module: torch.nn.Module, _inputs: Any, _result: Any) -> None:
        # A loss module counts too, but comes and goes without a pass of its own.
        self._depth -= 1


def main() -> None:
    """Set the pace, then run the script."""
    ms_per_sample, script, *arguments = sys.argv[1:]
    PacedSteps(float(ms_per_sample) / 1000.0)
    sys.argv = [script, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(script))  # noqa: PTH100, PTH120 - as python does
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()

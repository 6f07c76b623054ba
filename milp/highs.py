"""Instances of the solver HiGHS that print nothing. All that use HiGHS make theirs here.

highspy 1.16 prints a header of two lines on standard output while an instance is being made, as
its constructor registers callbacks before anybody can switch output off. A verb's ``--json`` would
be no JSON any more.
"""

from __future__ import annotations

from typing import Any

import highspy

OUTPUT_OFF = ("output_flag", False)


class _Quiet(highspy.Highs):
    def enableCallbacks(self) -> None:  # noqa: N802 - highspy's name
        self.setOptionValue(*OUTPUT_OFF)
        super().enableCallbacks()  # type: ignore[no-untyped-call]  # of highspy


def new_highs() -> Any:
    """Return an instance; Any, as highspy is typed in part only."""
    quiet: Any = _Quiet
    return quiet()

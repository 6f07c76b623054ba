"""The colours of trainers, the same on the page, in pictures and in ``bftrainer top``.

After Okabe and Ito ("Color Universal Design", 2008), a little darker, so that they are told apart
on white and on black by everybody. Uses of nodes have greys and patterns, and red where an agent is
not heard, so that no colour is that of a trainer and of a use. ``assets/picture.js`` has the same.
"""

from __future__ import annotations

import re
from typing import Final

TRAINER_COLOURS: Final = (
    *("#0072b2", "#d55e00", "#009e73", "#b255a0", "#c29200", "#3aa0d8", "#6a4fb3", "#7f7320"),
)


def colour_of(trainer_id: str) -> str:
    """Return a trainer's colour by its number, so that all surfaces and days agree."""
    digits = re.sub(r"\D", "", trainer_id)
    return TRAINER_COLOURS[int(digits or 0) % len(TRAINER_COLOURS)]

"""Predicts what a site would gain: its idle time, recommended settings, expected harvest.

``study`` takes a trace and ``Assumptions`` and returns a ``BusinessCase``; ``document`` turns that
into JSON, text and HTML. ``bftrainer whatif`` calls them; see docs/howto/choose-settings.md.
"""

from __future__ import annotations

from bftrainer.lab.whatif.advice import BusinessCase, study
from bftrainer.lab.whatif.document import as_document, report_of
from bftrainer.lab.whatif.replays import Assumptions

__all__ = ["Assumptions", "BusinessCase", "as_document", "report_of", "study"]

"""Notifications from LSF: records in ``lsb.events``, or files that an ``esub`` or ``epsub`` writes.

``records`` assembles and parses lines of lsb.events, ``watch`` notices them. They need no change of
the site, and come after LSF accepted the job. ``esub`` is the second way, for sites where
lsb.events cannot be read: a script (``script``) writes one small file per user. Without either the
daemon only polls.
"""

from collections.abc import Mapping
from typing import Final

NOT_POLLED: Final[Mapping[str, int]] = {"": 1}
"""Slots of nodes before the first poll: each slot may need a node of its own."""

"""``python -I -m trainers.agent --config FILE``: what a pilot's batch script executes.

Signals are waited for before anything slow is imported: one that arrives during
start-up ends the process at once. Then comes what takes longest, the template.
"""

from __future__ import annotations

import sys

from trainers.agent.signals import SignalWaiter

if __name__ == "__main__":
    waiter = SignalWaiter()
    waiter.start()
    from trainers.agent.starting import start_early  # after the line above

    early = start_early(sys.argv[1:], waiter)
    from trainers.agent.main import main  # after the line above: slow

    sys.exit(main(sys.argv[1:], waiter, early))

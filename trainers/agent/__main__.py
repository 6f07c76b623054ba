"""``python -I -m trainers.agent --config FILE``: executed by a pilot's batch script.

Signals are handled before anything slow is imported, so that one during start-up ends the
process at once. Next the template is started, which takes longest.
"""

from __future__ import annotations

import os
import sys

from trainers.agent.signals import SignalWaiter

if __name__ == "__main__":
    if os.environ.get("SLURM_RESTART_COUNT", "0") != "0":
        sys.exit(0)  # a site requeues preempted jobs: the daemon has long given this pilot up
    waiter = SignalWaiter()
    waiter.start()
    from bftrainer.batch.process import forbid_core_files  # after waiter.start()
    from trainers.agent.start import PilotDirectory, start_early
    from trainers.agent.surroundings import leave_pilot

    forbid_core_files()  # before the key is read, and anything is started
    leave_pilot(os.environ)
    directory = PilotDirectory()
    early = start_early(sys.argv[1:], waiter, directory)
    from trainers.agent.main import main  # slow: after the template

    sys.exit(main(sys.argv[1:], waiter, early, directory))

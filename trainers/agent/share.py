"""``python -I -m trainers.agent.share SOCKET [MODULE]...``: the template of a whole host.

Becomes a template with the environment that an agent's own would have
(``bftrainer.elastic.shared_template``). The embedded batch system starts it with ``--warm``.
"""

from __future__ import annotations

import sys

from bftrainer.batch import process
from trainers.agent.signals import heed_signals
from trainers.agent.start import TEMPLATE_PROGRAM, usual_environment

if __name__ == "__main__":
    heed_signals()
    process.forbid_core_files()  # it is no child of the agents that it serves
    argv = (sys.executable, str(TEMPLATE_PROGRAM), *sys.argv[1:])
    process.become(argv, env=usual_environment())

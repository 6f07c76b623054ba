"""``bftrainer daemon`` whose polls or decisions hang while a file exists, and write into it.

``python -m tests.support.stuck poll|decision FILE OPTION...`` (options of ``bftrainer daemon``).
systemd's watchdog may then be as short as a test wants.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bftrainer.cli.main import main
from bftrainer.daemon import systemd
from bftrainer.daemon.decider import Decider

METHODS = {"poll": "look_into", "decision": "take"}  # both run in a thread of their own


def hanging(method: Callable[..., Any], file: Path) -> Callable[..., Any]:
    def hang(*given: Any) -> Any:
        if file.exists():
            file.write_text("hangs")
        while file.exists():
            time.sleep(0.01)
        return method(*given)

    return hang


if __name__ == "__main__":
    what, file, *options = sys.argv[1:]
    name = METHODS[what]
    systemd.CYCLE_S = 0.5
    setattr(Decider, name, hanging(getattr(Decider, name), Path(file)))
    sys.exit(main(["daemon", *options]))

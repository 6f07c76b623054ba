"""What the template runs as the script of a worker: ``OTHERS SCRIPT [ARGUMENT ...]``."""

from __future__ import annotations

from bftrainer.elastic.horovod.bootstrap import main

if __name__ == "__main__":
    main()

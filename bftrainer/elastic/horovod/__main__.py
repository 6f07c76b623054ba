"""The script that the template runs in a worker: ``OTHERS SCRIPT [ARGUMENT ...]``."""

from __future__ import annotations

from bftrainer.elastic.horovod.session import main

if __name__ == "__main__":
    main()

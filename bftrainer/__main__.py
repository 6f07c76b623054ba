"""``python -m bftrainer``: the same as ``bftrainer``."""

import sys

from bftrainer.cli.main import main

sys.exit(main())

"""Print a schema: ``python -m milp.schema problem`` or ``... allocation``."""

from __future__ import annotations

import argparse

from milp.schema import NAMES, text

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m milp.schema", description=__doc__)
    parser.add_argument("name", choices=NAMES)
    print(text(parser.parse_args().name), end="")

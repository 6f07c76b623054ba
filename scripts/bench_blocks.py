"""Two versions of the code on one real Slurm at real speed, in ABAB blocks on one stream of jobs.

A test cluster with ``bf_interval=60`` and so many hopeless pending jobs that a backfill cycle
takes ten seconds and more; ordinary jobs arrive all the while, from one seed. In each block one
daemon runs, of the code in ``--old`` (A) or of this checkout (B), with two trainers that can
use every node. What happened is kept in ``--keep``; ``--evaluate`` reports it, also later. A
report, no bar, with exact 95% intervals; the first two minutes of a block are left out. *Lost
cycle*: at the begin of a cycle the job fits, by the plan of ``bench_site.py``, on nodes that are
free or ours, and it waits when the next one begins.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from _bench.blocks import evaluate
from _bench.blocks.record import Plan, recorder

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Run the blocks, or report those of an earlier call."""
    arguments = _arguments()
    if arguments.evaluate:
        evaluate.report(arguments.evaluate, arguments.json)
        return 0
    keep = arguments.keep.resolve()
    keep.mkdir(parents=True)
    quick = arguments.quick
    plan = Plan(
        n_nodes=arguments.nodes or (16 if quick else 64),
        bf_interval_s=60,
        minutes=arguments.minutes or (3.0 if quick else 30.0),
        n_blocks=2 * (1 if quick else arguments.pairs),
        n_hopeless=arguments.hopeless,
        load=arguments.load,
        seed=arguments.seed,
        keep=keep,
    )
    directory = Path(tempfile.mkdtemp(prefix="bft-blocks-", dir="/tmp"))
    directory.chmod(0o755)  # ordinary users' jobs must reach the cluster's directory
    old, out = arguments.old.resolve(), arguments.json and arguments.json.resolve()
    os.chdir(directory)  # "python -m" looks here first: no checkout may be there
    try:
        with recorder(plan, directory, old, ROOT) as run:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: run.is_enough.set())
            for block in run.play():
                print(f"{time.strftime('%H:%M:%S')} {block}", file=sys.stderr, flush=True)
                evaluate.report(keep, out)  # those before: this one's journal is being read
        evaluate.report(keep, out)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--old", type=Path, help="a checkout of the other code")
    what.add_argument("--evaluate", type=Path, help="report what an earlier call kept here")
    parser.add_argument("--quick", action="store_true", help="one pair of 3 min on 16 nodes")
    parser.add_argument("--minutes", type=float, help="of a block (default 30)")
    parser.add_argument("--pairs", type=int, default=2, help="of blocks")
    parser.add_argument("--nodes", type=int, help="default 64, quick 16")
    parser.add_argument("--hopeless", type=int, default=2500, help="jobs that stay pending")
    parser.add_argument("--load", type=float, default=0.65, help="share of node-seconds asked for")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, default=Path("bench-out/blocks"))
    parser.add_argument("--json", type=Path, help="write the results here")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

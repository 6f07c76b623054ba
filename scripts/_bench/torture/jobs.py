"""A user of Slurm whose ``sbatch`` is an attack on whoever hears of it or reads the queue.

Slurm refuses nearly all of these; what it takes is cancelled at once.
"""

from __future__ import annotations

import random
import subprocess

# Who reads only what the hook tells takes these for jobs that can start on any four nodes.
LOOKS_FINE = (
    ("--nodes=4", "--mem=999999999G"),
    ("--nodes=4", "--cpus-per-task=65000"),
    ("--nodes=4", "--nodelist=nosuch[1-4]"),
)
ATTACKS: tuple[tuple[str, ...], ...] = (
    *LOOKS_FINE,
    ("--constraint=" + "(" * 600 + "a" + ")" * 600,),
    ("--constraint=" + "&".join("(a|b)" for _ in range(18)),),
    ("--constraint=" + "|".join("a" for _ in range(60_000)),),
    ("--constraint=" + "&|" * 10_000 + "a",),
    ("--constraint=[" + "|".join(f"f{n}*{n}" for n in range(4_000)) + "]",),
    ("--gres=" + "gpu:1," * 20_000,),
    ("--gres=gpu:" + "9" * 400,),
    ("--nodelist=" + "n[1-200000]," * 8,),
    ("--nodelist=n[0-9][0-9][0-9][0-9][0-9][0-9]",),
    ("--partition=" + ",".join(f"p{n}" for n in range(10_000)),),
    ("--nodes=100000",),
    ("--time=99999-00:00:00", "--mem=999999999G"),
    ("--constraint=nosuch", "--nodes=4"),
    ("--partition=nosuch", "--nodes=4"),
    ("--comment=" + "\x1b[2J" * 1_000, "--mem=999999999G"),
)
_PROGRAM = ("--output=/dev/null", "--chdir=/", "--wrap=true")
PATIENCE_S = 60.0


def submit(chance: random.Random) -> str:
    """Submit one of them."""
    arguments = chance.choice(LOOKS_FINE if chance.random() < 0.5 else ATTACKS)
    ended = run("sbatch", "--parsable", *arguments, *_PROGRAM)
    if ended.returncode:
        return "refused"
    run("scancel", ended.stdout.strip().partition(";")[0])
    return "taken, cancelled"


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, without its error output."""
    return subprocess.run(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip

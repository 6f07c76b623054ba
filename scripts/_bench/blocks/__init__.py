"""Two versions of the code in turn on one real Slurm; see ``bench_blocks.py``."""

"""The parts of ``bench_gpus``: arms on real clusters, slurmctld's log, and what it shows."""

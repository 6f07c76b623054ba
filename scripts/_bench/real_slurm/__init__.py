"""Ordinary jobs on a real Slurm, from a phase of its backfill on, and trainers that sleep."""

"""Job scripts for sbatch, translated into command lines of ``bftrainer submit``.

Nothing of a job script is ever run or given to a shell here: it is read as text.
"""

"""The proof that ordinary jobs do not notice: runs with and without bftrainer, compared."""

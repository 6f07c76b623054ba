"""The page: what ``bftrainer web`` serves to one user's browser."""

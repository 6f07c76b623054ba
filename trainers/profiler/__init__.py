"""What ``bftrainer profile`` runs in the user's interpreter, by path."""

"""Programs that ``bftrainer profile`` runs by path in the user's interpreter."""

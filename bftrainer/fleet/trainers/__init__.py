"""The trainers of a daemon: records, generation machines, what they cost and learn."""

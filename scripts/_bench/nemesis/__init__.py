"""Random faults against a small cluster on which trainers train: what is kept, what is lost."""

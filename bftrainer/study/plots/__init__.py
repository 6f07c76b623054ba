"""Pictures of a study: its history, parameters, their importance, and rungs over time."""

"""What the benchmark scripts share: statistics, targets, step records, processes."""

"""The trainers of a daemon: records, generation machines, measured costs and throughput."""

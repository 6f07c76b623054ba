"""Reports of replays: course over time, tables, CSV, and pages with figures."""

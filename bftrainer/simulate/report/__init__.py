"""What a replay leaves to read: its course over time, tables, CSV, and pages with figures."""

"""DecisionInput → Plan: pure; the same code decides in the daemon and the simulator."""

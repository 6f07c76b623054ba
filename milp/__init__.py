"""The allocation problem, its exact solution and its checker; pure, numpy only."""

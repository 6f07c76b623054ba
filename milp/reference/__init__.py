"""The paper's node-level model on general solvers: slow, faithful, for comparison."""

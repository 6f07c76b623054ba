"""Studies in the simulator: trials that wait at rungs, grow and stop, by the rules of real ones."""

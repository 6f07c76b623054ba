"""The rules that stop, continue and start trials, one per module. Pure."""

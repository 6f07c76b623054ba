"""Container runtimes: a module for each, the choice among them, and the entry that starts one."""

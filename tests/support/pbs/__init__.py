"""OpenPBS for tests: a stand-in of its commands, and the driver of an installed one."""

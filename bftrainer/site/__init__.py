"""What an administrator sets and installs: policy, submit helper, and a user's own daemon."""

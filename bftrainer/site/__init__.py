"""The administrator's settings and files: policy, submit helper; and a user's own daemon."""

"""Empty; the groups of settings are in ``bftrainer.site.policy.keys``."""

"""Plans and records as sentences for users and logs. Pure."""

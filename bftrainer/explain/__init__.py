"""Plans and records in sentences: what users and logs are told. Pure."""

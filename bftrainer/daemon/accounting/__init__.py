"""Node-hours harvested, lost and given back, by day, user, account and trainer."""

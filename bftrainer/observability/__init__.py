"""What the daemon tells the world about itself: logs, notifications, pictures."""

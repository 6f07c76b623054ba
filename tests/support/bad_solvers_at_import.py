"""A solver whose import never ends: its request stays unread."""

while True:
    pass

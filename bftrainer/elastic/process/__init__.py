"""The process of a worker and its talk with the agent: messages, reports, the store, side threads.

Not the start of the script (``elastic.worker``), nor connections between members (``network``).
"""

"""The parts of ``Run``: phases and position of its loops, its membership, its length and notes.

Not ``Run`` itself, which is ``elastic.run``.
"""

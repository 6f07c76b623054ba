"""The paper's evaluation again: every result of its section 5 from replays of a trace.

``registry`` names the results; each says which replays it needs (``runs``) and makes lines
out of them (``findings``). ``bftrainer reproduce`` is the only caller.
"""

"""Networks that choose the next step of an allocation: inference, files, training (numpy only).

Used by the policy dl2, by its training (``bftrainer policy train``) and by ``papers.dl2``.
"""

"""Policies side by side: the same workloads with each of them, and what is certain of the result.

An ``arena`` plays a policy and a seed; ``plays`` plays all pairs in several processes; ``table``
makes means with confidence intervals of them; ``page`` writes them as HTML.
"""

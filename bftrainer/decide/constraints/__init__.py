"""Constraints that an answer of any policy has to meet, one per module."""

"""Adapters for training loops that somebody else owns: Hugging Face, Lightning.

Each is a module of its own, imported by the script that uses it; none is imported by
``bftrainer.elastic`` itself, and none of the libraries is required. See docs/hooks.md.
"""

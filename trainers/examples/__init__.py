"""Example training scripts; run one by hand to try it."""

"""Example training scripts, each elastic by five lines; run one plainly to try it."""

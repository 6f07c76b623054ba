"""The effect on ordinary jobs: measured at every hand-over of a node, and acted on."""

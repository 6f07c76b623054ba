"""Do ordinary jobs notice us? Measured at every hand-over of a node, and acted upon."""

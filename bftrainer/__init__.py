"""bftrainer: trains neural networks on the idle nodes of a supercomputer."""

__version__ = "0.1.0"

"""DL2: a scheduler that learns (Peng et al., arXiv 1909.06040; TPDS 2021), section 6."""

"""``lmr doctor``: what a model is and whether it works."""

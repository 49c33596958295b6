"""``lmr predict``: label images while adapting to them."""

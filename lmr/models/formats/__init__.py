"""From the name of a model to its files, their tensors and our names for them."""

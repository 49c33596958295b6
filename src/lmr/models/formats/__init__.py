"""From the name of a model to its files, their tensors, and the weights of our towers."""

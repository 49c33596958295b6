"""The obvious alternative: methods as loops on a transformers model with autograd and torch.optim, one file each.

A file has the name of its method. The loops are written from the equations and share no code with the library's own
methods, so that the comparison of time and memory is also an independent check of the answers.
"""

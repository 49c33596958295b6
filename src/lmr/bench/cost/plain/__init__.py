"""The obvious alternative: methods as loops on a transformers model with autograd and torch.optim, one file each.

The file of a method is named ``plain_`` and the method's name. The loops are written from the equations and share no
code with the library's own methods, so that comparing time and memory is also an independent check of the answers.
"""

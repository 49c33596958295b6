"""Prompt learning: the words before the class names become vectors that a method adapts."""

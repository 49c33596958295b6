"""Choosing a method's arguments without labels."""

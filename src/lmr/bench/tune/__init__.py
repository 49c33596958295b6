"""The choice of a method's arguments without labels."""

"""Base classes that two or more methods share."""

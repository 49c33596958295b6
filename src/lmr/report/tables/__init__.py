"""Tables from rows, and their formats."""

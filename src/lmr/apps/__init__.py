"""Applications: each is one function that serves Python and the command line."""

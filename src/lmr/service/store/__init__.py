"""The store: states, answers and events in one SQLite file."""

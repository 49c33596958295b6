"""The store: states, answers and events in SQLite or PostgreSQL."""

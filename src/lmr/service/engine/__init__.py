"""The engine: a scheduler that batches by stream, and one compute thread. It knows nothing of HTTP."""

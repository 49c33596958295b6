"""The compute thread's part of the engine: the streams in the method, and what is done for them."""

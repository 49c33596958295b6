"""The routes under /v1, the probes, and the page."""

"""The Python client of the service, and the feeder that sends the frames of a camera. They need httpx, not torch."""

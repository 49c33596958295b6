"""The commands around the service."""

"""The HTTP side of the service: routes, limits, metrics and events."""

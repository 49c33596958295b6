"""From a request to images that a model takes: bodies within their limits, decoded by a small pool of threads."""

"""The service: one process that keeps a classifier right for many streams of images, each with a state of its own."""

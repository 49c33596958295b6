"""The service on a cluster: replicas of the engine behind Ray Serve, and stores that fence their streams."""

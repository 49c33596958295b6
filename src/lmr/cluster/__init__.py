"""More than one machine, on Ray: the crew of a bench, shards of ``lmr predict``, replicas of the service."""

"""More than one machine, on Ray: the pool of a bench, shards of ``lmr predict``, replicas of the service."""

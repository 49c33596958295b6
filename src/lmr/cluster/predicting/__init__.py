"""``lmr predict --ray``: shards of streams, each labelled by an actor on a node of a cluster."""

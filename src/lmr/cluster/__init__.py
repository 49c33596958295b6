"""More than one machine, on Ray: the pool of a bench, streams of ``lmr predict``."""

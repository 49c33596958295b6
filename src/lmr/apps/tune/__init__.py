"""``lmr tune``: choosing a method's arguments on unlabelled images."""

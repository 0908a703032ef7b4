"""Where it is wrong: the first divergence, its source line and its cause."""

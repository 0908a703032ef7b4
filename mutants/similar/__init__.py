"""Which mutant a divergence resembles."""

"""How cases are found and made small: strategies, hunts, shrinking, replay."""

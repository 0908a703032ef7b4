"""Records every operation of a torch model in both paths, aligns the two and compares them."""

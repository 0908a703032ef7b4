"""Generic mutants: faults that fit any subject. They act around its methods, in the contents of its
caches, or in the modules and operations of its model during a cached call."""

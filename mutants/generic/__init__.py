"""Interventions: faults that fit any subject, put around its methods, into what its caches hold, or
into the modules and operations of its model while a cached call runs."""

"""What is under test: how a subject is found, built and run."""

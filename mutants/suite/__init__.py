"""The score as tests: `pytest --pyargs mutants.suite`, one test per mutant."""

"""The commands of the mutation score."""

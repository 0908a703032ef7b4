"""The interventions, one file per operator."""

"""The cut between forward and backward."""

"""The user's own rules, applied to the captured program on values."""

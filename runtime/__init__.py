"""Loading, caching and calling what was compiled; the reference interpreter; the tape node."""

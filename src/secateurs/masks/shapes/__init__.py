"""What masks may look like: runs of N:M, and groups that are kept or cut whole."""

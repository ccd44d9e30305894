"""What a study keeps: rows, leases and artefacts, written so that a kill loses nothing."""

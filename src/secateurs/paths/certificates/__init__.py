"""How far two networks can differ on a domain: proofs, searches and statistics."""

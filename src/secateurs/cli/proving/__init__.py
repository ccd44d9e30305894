"""`secateurs certify`: how it proves."""

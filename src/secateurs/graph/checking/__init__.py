"""What was read is compared with the model it was read from."""

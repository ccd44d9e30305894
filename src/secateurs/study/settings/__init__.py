"""What a study says: methods, training, data and networks by name; read from TOML."""

"""What every room stands on: parameters, hashes, files, native code, printing."""

"""What every room stands on: parameters, files, native code, printing. Nothing here knows a graph."""

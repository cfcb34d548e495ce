"""Time-slicing and MPS."""

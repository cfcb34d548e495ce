"""Time-slicing, compute mode and MPS: what the driver does to a GPU so that several processes share it."""

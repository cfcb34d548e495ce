"""Pure facts and rules: devices, MIG, topology, health, names, quantities. No I/O, no clock."""

"""Programs that stand in for the driver's own, and what installs them."""

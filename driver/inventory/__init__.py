"""The node's GPUs: NVML, a fake, and sysfs."""

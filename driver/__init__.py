"""gpu-dra: a Kubernetes DRA driver and device plugin for GPUs."""

__version__ = "0.1.0"

"""The few calls to the Kubernetes API; its errors are mapped at this border."""

"""Validation of objects, with the messages of a real API server. Pure."""

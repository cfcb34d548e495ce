"""The embedded cluster's API server: an in-process `Store` and the HTTP side of it."""

"""The embedded cluster's controllers: claims, Deployments, ReplicaSets, Jobs, eviction from tainted devices.

Each is a class with `run()`, driven by the store's changes. Garbage collection is the store's own.
"""

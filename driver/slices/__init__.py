"""Snapshot to ResourceSlices: build and diff (pure), publish."""

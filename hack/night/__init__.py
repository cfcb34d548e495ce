"""What takes too long for every change: `hack/nightly` runs it."""

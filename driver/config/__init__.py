"""Opaque parameters of claims and classes: decode, normalize, validate, precedence. Pure."""

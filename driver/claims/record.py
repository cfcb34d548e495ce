"""The record of a claim: what is on disk about it. Versioned, checksummed, tolerant of newer fields. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedDevice:
    """One allocated device as answered to the kubelet."""

    requests: tuple[str, ...]  # request names without the subrequest
    pool: str
    device: str
    cdi_ids: tuple[str, ...]
    share_id: str | None = None

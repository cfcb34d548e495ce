"""Where the API server is, and how to prove who we are. In a pod: the service account's files."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from driver.errors import SettingsError
from driver.kube.credentials import FileToken, NoToken
from driver.kube.tls import Tls

if TYPE_CHECKING:
    from collections.abc import Mapping

    from driver.kube.credentials import Token

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """One API server and the credentials for it. `server` is a URL without a trailing slash."""

    server: str
    tls: Tls = field(default_factory=Tls)
    token: Token = field(default_factory=NoToken)
    proxy: str | None = None


def in_cluster(account: Path = SERVICE_ACCOUNT, environ: Mapping[str, str] = os.environ) -> ClusterConfig:
    """Return what a pod knows of its cluster. The token is read again when the kubelet has rotated it.

    :raises SettingsError: the process is in no pod, or the pod has no service account token.
    """
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise SettingsError(
            "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set, so this is no pod: "
            "give a kubeconfig, by --kubeconfig"
        )
    token, authority = account / "token", account / "ca.crt"
    for file in (token, authority):
        if not file.is_file():
            raise SettingsError(f"{file} is missing: the pod needs automountServiceAccountToken: true")
    bracketed = f"[{host}]" if ":" in host else host
    return ClusterConfig(server=f"https://{bracketed}:{port}", tls=Tls(ca_file=authority), token=FileToken(token))

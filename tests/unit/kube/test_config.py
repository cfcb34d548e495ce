from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from driver.errors import ApiUnauthorizedError, SettingsError
from driver.kube.client import KubeClient
from driver.kube.config import in_cluster

if TYPE_CHECKING:
    from pathlib import Path

    from driver.localcluster.apiserver import ApiServer

ENVIRON = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


@pytest.fixture
def account(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("abc\n")
    (tmp_path / "ca.crt").write_text("")
    return tmp_path


@pytest.mark.parametrize(("host", "url"), [("10.0.0.1", "https://10.0.0.1:443"), ("fd00::1", "https://[fd00::1]:443")])
async def test_a_pod_knows_its_cluster(account: Path, host: str, url: str) -> None:
    cluster = in_cluster(account, {**ENVIRON, "KUBERNETES_SERVICE_HOST": host})
    assert cluster.server == url
    assert cluster.tls.ca_file == account / "ca.crt"
    assert await cluster.token.bearer() == "abc"


@pytest.mark.parametrize("missing", ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"])
def test_elsewhere_is_no_pod(account: Path, missing: str) -> None:
    environ = {key: value for key, value in ENVIRON.items() if key != missing}
    with pytest.raises(SettingsError, match="kubeconfig"):
        in_cluster(account, environ)


@pytest.mark.parametrize("missing", ["token", "ca.crt"])
def test_a_pod_without_service_account_is_told_so(account: Path, missing: str) -> None:
    (account / missing).unlink()
    with pytest.raises(SettingsError, match="automountServiceAccountToken"):
        in_cluster(account, ENVIRON)


async def test_a_rotated_token_is_used_at_once(server: ApiServer, tmp_path: Path) -> None:
    for name in ("old", "new"):
        server.store.create("serviceaccounts", {"metadata": {"name": name}}, "default")
    (tmp_path / "ca.crt").write_bytes(server.ca_file.read_bytes())
    token = tmp_path / "token"
    token.write_text(server.token_for_service_account("default", "old"))
    host, _, port = server.url.removeprefix("https://").partition(":")
    cluster = in_cluster(tmp_path, {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port})
    async with KubeClient(cluster) as client:
        await client.get("/api/v1/namespaces/default")
        token.write_text("expired")
        with pytest.raises(ApiUnauthorizedError):
            await client.get("/api/v1/namespaces/default")
        token.write_text(server.token_for_service_account("default", "new"))
        await client.get("/api/v1/namespaces/default")
    users = [call.user for call in server.audit.calls]
    assert users == [
        "system:serviceaccount:default:old",
        "system:anonymous",
        "system:serviceaccount:default:new",
    ]

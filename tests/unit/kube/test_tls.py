from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import pytest
import trustme
from aiohttp import web

from driver.errors import ApiUnavailableError, SettingsError
from driver.kube.client import KubeClient
from driver.kube.config import ClusterConfig
from driver.kube.tls import Tls

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

CLIENT = trustme.CA()
SERVER = trustme.CA()


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """A server that wants a client certificate, itself known as `api.test` only."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    SERVER.issue_cert("api.test").configure_cert(context)
    CLIENT.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED

    async def hello(request: web.BaseRequest) -> web.Response:
        return web.json_response({})

    runner = web.ServerRunner(web.Server(hello), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    yield f"https://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def get(url: str, tls: Tls) -> None:
    async with KubeClient(ClusterConfig(server=url, tls=tls)) as client:
        await client.get("/x")


def inline() -> Tls:
    pair = CLIENT.issue_cert("me@example.com")
    return Tls(
        ca_data=SERVER.cert_pem.bytes(),
        certificate_data=pair.cert_chain_pems[0].bytes(),
        key_data=pair.private_key_pem.bytes(),
        server_name="api.test",
    )


async def test_inline_certificates_and_a_server_name(url: str) -> None:
    await get(url, inline())


async def test_certificates_in_files(url: str, tmp_path: Path) -> None:
    tls = inline()
    names = {"ca": tls.ca_data, "cert": tls.certificate_data, "key": tls.key_data}
    for name, data in names.items():
        assert data is not None
        (tmp_path / name).write_bytes(data)
    files = Tls(
        ca_file=tmp_path / "ca",
        certificate_file=tmp_path / "cert",
        key_file=tmp_path / "key",
        server_name="api.test",
    )
    await get(url, files)


async def test_without_a_server_name_or_a_certificate_it_fails(url: str) -> None:
    tls = inline()
    with pytest.raises(ApiUnavailableError, match="certificate"):
        await get(url, Tls(ca_data=tls.ca_data, certificate_data=tls.certificate_data, key_data=tls.key_data))
    with pytest.raises(ApiUnavailableError):
        await get(url, Tls(ca_data=tls.ca_data, server_name="api.test"))


async def test_an_unknown_authority_is_refused_unless_told_not_to_verify(url: str) -> None:
    tls = inline()
    pair = {"certificate_data": tls.certificate_data, "key_data": tls.key_data}
    with pytest.raises(ApiUnavailableError, match="certificate"):
        await get(url, Tls(ca_data=CLIENT.cert_pem.bytes(), server_name="api.test", **pair))
    await get(url, Tls(verify=False, **pair))


async def test_a_replaced_authority_is_read_after_a_failure(url: str, tmp_path: Path) -> None:
    ca = tmp_path / "ca.crt"
    ca.write_bytes(CLIENT.cert_pem.bytes())
    tls = inline()
    wanted = Tls(ca_file=ca, certificate_data=tls.certificate_data, key_data=tls.key_data, server_name="api.test")
    async with KubeClient(ClusterConfig(server=url, tls=wanted)) as client:
        with pytest.raises(ApiUnavailableError):
            await client.get("/x")
        ca.write_bytes(SERVER.cert_pem.bytes())
        await client.get("/x")


@pytest.mark.parametrize(
    "tls",
    [Tls(ca_data=b"no PEM"), Tls(ca_data=b"\xff"), Tls(certificate_data=b"s3cret", key_data=b"s3cret")],
)
def test_bad_pem_is_refused_and_not_shown(tls: Tls) -> None:
    with pytest.raises(SettingsError) as caught:
        tls.context()
    assert "s3cret" not in str(caught.value) + repr(tls)

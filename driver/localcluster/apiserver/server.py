"""The API server as a whole: TLS, listening, credentials, and its parts put together."""

from __future__ import annotations

import base64
import ssl
from typing import TYPE_CHECKING, Any

import yaml
from aiohttp import web

from driver.localcluster.apiserver.audit import AuditLog
from driver.localcluster.apiserver.authorization import Authorizer
from driver.localcluster.apiserver.bootstrap import bootstrap
from driver.localcluster.apiserver.discovery import Discovery
from driver.localcluster.apiserver.faults import Faults
from driver.localcluster.apiserver.handler import Handler
from driver.localcluster.apiserver.identity import MASTERS, Tokens, User
from driver.localcluster.apiserver.objects import metadata
from driver.localcluster.apiserver.registry import Registry
from driver.localcluster.apiserver.reviews import Reviews
from driver.localcluster.apiserver.store import Store
from driver.localcluster.apiserver.subresources import Subresources
from driver.localcluster.apiserver.verbs import Verbs

if TYPE_CHECKING:
    import asyncio
    from pathlib import Path

    from driver.localcluster.apiserver.execution import ExecSource
    from driver.localcluster.apiserver.features import Features
    from driver.localcluster.apiserver.subresources import LogSource

_HOST = "127.0.0.1"
_MAX_BODY = 3 << 20  # bytes; as a real API server
_TOKEN_SECONDS = 365 * 24 * 3600


class ApiServer:
    """One API server. `start` binds the port, which stays the same over `stop` and `start`, as does the state.

    `store`, `audit`, `faults`, `tokens` and `authorizer` are for the cluster's other parts and for tests.
    """

    def __init__(
        self,
        root: Path,
        features: Features | None = None,
        *,
        port: int = 0,
        authorization: bool = False,
        audit_file: Path | None = None,
    ) -> None:
        self._root = root
        self.store = Store(features)
        self.audit = AuditLog(file=audit_file)
        self.faults = Faults()
        self.tokens = Tokens()
        self.authorizer = Authorizer(self.store, enforce=authorization)
        self._subresources = Subresources(self.store, self.tokens)
        self._port = port
        self._runner: web.ServerRunner | None = None
        self._tls: tuple[ssl.SSLContext, bytes] | None = None
        self._bootstrapped = False

    @property
    def url(self) -> str:
        """Where it listens: `https://127.0.0.1:PORT`."""
        return f"https://{_HOST}:{self._port}"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig file, written by `start`."""
        return self._root / "kubeconfig"

    @property
    def ca_file(self) -> Path:
        """The certificate authority's certificate (PEM), written by `start`."""
        return self._root / "ca.crt"

    @property
    def log_source(self) -> LogSource | None:
        """Who knows the logs of containers."""
        return self._subresources.log_source

    @log_source.setter
    def log_source(self, source: LogSource | None) -> None:
        self._subresources.log_source = source

    @property
    def exec_source(self) -> ExecSource | None:
        """Who runs commands in containers."""
        return self._subresources.exec_source

    @exec_source.setter
    def exec_source(self, source: ExecSource | None) -> None:
        self._subresources.exec_source = source

    async def start(self) -> None:
        """Listen, and write the administrator's kubeconfig on the first start.

        :raises OSError: if the port is taken or the root can't be written.
        """
        self._root.mkdir(parents=True, exist_ok=True)
        if not self._bootstrapped:
            bootstrap(self.store)
            self._bootstrapped = True
        if self._tls is None:
            self._tls = _certificates()
            self.ca_file.write_bytes(self._tls[1])
        self._runner = web.ServerRunner(
            web.Server(self._handler(), request_factory=_request, handler_cancellation=True, access_log=None),
            shutdown_timeout=0.5,
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, _HOST, self._port, ssl_context=self._tls[0], reuse_address=True)
        await site.start()
        self._port = self._runner.addresses[0][1]
        if not self.kubeconfig.exists():
            admin = User(name="admin", groups=(MASTERS, "system:authenticated"))
            self._write_kubeconfig(self.kubeconfig, admin.name, self.tokens.issue(admin))

    async def stop(self) -> None:
        """Stop to listen and cut every connection; the state is kept, and who shares this process still sees it."""
        self.store.close_watches(only_served=True)
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def kubeconfig_for(self, user: str, *, groups: tuple[str, ...] = ()) -> Path:
        """Write a kubeconfig for a user and return its path."""
        token = self.tokens.issue(User(name=user, groups=(*groups, "system:authenticated")))
        return self._write_kubeconfig(self._root / f"{_file_name(user)}.kubeconfig", user, token)

    def kubeconfig_for_service_account(self, namespace: str, name: str, *, node: str = "") -> Path:
        """Write a kubeconfig for a service account, bound to a node if one is given, and return its path.

        :raises StatusError: 404 if there is no such account or node.
        """
        token = self.token_for_service_account(namespace, name, node=node)
        file = self._root / f"{namespace}-{name}{'-' if node else ''}{node}.kubeconfig"
        return self._write_kubeconfig(file, f"{namespace}:{name}", token)

    def token_for_service_account(self, namespace: str, name: str, *, node: str = "") -> str:
        """Return a token of a service account, bound to a node if one is given.

        :raises StatusError: 404 if there is no such account or node.
        """
        account = metadata(self.store.get("serviceaccounts", name, namespace))
        ask: dict[str, Any] = {"expires": _TOKEN_SECONDS}
        if node:
            about = metadata(self.store.get("nodes", node))
            ask["node"] = {"name": node, "uid": about["uid"]}
        return self.tokens.issue_bound(namespace, account, ask)[0]

    def _handler(self) -> Handler:
        registry = Registry(self.store.features)
        return Handler(
            registry=registry,
            verbs=Verbs(self.store, self._subresources, Reviews(self.tokens, self.authorizer), self.authorizer),
            discovery=Discovery(registry, self.store.features),
            tokens=self.tokens,
            authorizer=self.authorizer,
            audit=self.audit,
            faults=self.faults,
        )

    def _write_kubeconfig(self, path: Path, user: str, token: str) -> Path:
        assert self._tls is not None, "start the server first"  # noqa: S101 - a programming error
        cluster = {"server": self.url, "certificate-authority-data": base64.b64encode(self._tls[1]).decode()}
        context = {"cluster": "gpu-dra", "user": user, "namespace": "default"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "gpu-dra", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": "gpu-dra", "context": context}],
            "current-context": "gpu-dra",
        }
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(config, sort_keys=False))
        return path


def _file_name(user: str) -> str:
    return "".join(char if char.isalnum() or char in "-." else "-" for char in user)


def _certificates() -> tuple[ssl.SSLContext, bytes]:
    """Make an authority, and a certificate of it; return the server's context and the authority (PEM)."""
    import trustme

    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(_HOST, "localhost", "kubernetes.default.svc").configure_cert(context)
    return context, authority.cert_pem.bytes()


def _request(message: Any, payload: Any, protocol: Any, writer: Any, task: asyncio.Task[None]) -> web.BaseRequest:
    return web.BaseRequest(message, payload, protocol, writer, task, task.get_loop(), client_max_size=_MAX_BODY)

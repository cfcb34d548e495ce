"""Kubeconfig files, as kubectl reads them: contexts, relative paths, inline data, exec plugins."""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from driver.errors import SettingsError
from driver.kube.config import ClusterConfig
from driver.kube.credentials import FileToken, FixedToken, NoToken
from driver.kube.exec_plugin import ExecPlugin, ExecToken
from driver.kube.tls import Tls

if TYPE_CHECKING:
    from driver.kube.credentials import Token


def load(path: Path | str, context: str | None = None) -> ClusterConfig:
    """Return the API server and credentials of a context, by default the current one.

    :raises SettingsError: naming the file, the field and what would be right.
    """
    file = Path(path).expanduser()
    root = _Fields(file, "kubeconfig", _read(file))
    name = context or root.text("current-context")
    if not name:
        raise SettingsError(f"{file}: current-context is not set; name a context")
    chosen = root.named("contexts", name, "context")
    cluster = root.named("clusters", chosen.required("cluster"), "cluster")
    user_name = chosen.text("user")
    user = root.named("users", user_name, "user") if user_name else _Fields(file, "user", {})
    return ClusterConfig(server=_server(cluster), tls=_tls(cluster, user), token=_token(user), proxy=_proxy(cluster))


class _Fields:
    """A mapping of the file, with its place for error messages.

    :raises SettingsError: by all methods, for a value of another type than asked for.
    """

    def __init__(self, file: Path, place: str, value: Any) -> None:
        if not isinstance(value, dict):
            raise SettingsError(f"{file}: {place} must be a mapping, not {type(value).__name__}")
        self.file = file
        self.place = place
        self._value = value

    def text(self, key: str) -> str:
        """Return a string; an empty one if there is none."""
        value = self._value.get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise SettingsError(f"{self.file}: {self.place}.{key} must be a string, not {type(value).__name__}")
        return value

    def required(self, key: str) -> str:
        """Return a string that must be there and not be empty."""
        value = self.text(key)
        if not value:
            raise SettingsError(f"{self.file}: {self.place}.{key} is missing")
        return value

    def flag(self, key: str) -> bool:
        """Return a boolean; false if there is none."""
        value = self._value.get(key, False)
        if not isinstance(value, bool):
            raise SettingsError(f"{self.file}: {self.place}.{key} must be true or false")
        return value

    def data(self, key: str) -> bytes | None:
        """Decode base64; the value is never shown."""
        text = self.text(key)
        try:
            return base64.b64decode("".join(text.split()), validate=True) if text else None
        except (binascii.Error, ValueError) as error:
            raise SettingsError(f"{self.file}: {self.place}.{key} is not base64") from error

    def path(self, key: str) -> Path | None:
        """Return a path that is relative to the kubeconfig, and check that it is there."""
        text = self.text(key)
        if not text:
            return None
        file = self.file.parent / text
        if not file.is_file():
            raise SettingsError(f"{self.file}: {self.place}.{key}: {file} is missing")
        return file

    def fields(self, key: str) -> _Fields | None:
        """Return the mapping in it; `None` if there is none."""
        value = self._value.get(key)
        return None if value is None else _Fields(self.file, f"{self.place}.{key}", value)

    def items(self, key: str) -> list[_Fields]:
        """Return the mappings of a list; none if there is no list."""
        value = self._value.get(key) or []
        if not isinstance(value, list):
            raise SettingsError(f"{self.file}: {self.place}.{key} must be a list")
        return [_Fields(self.file, f"{self.place}.{key}[{index}]", one) for index, one in enumerate(value)]

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of strings; an empty one if there is none."""
        value = self._value.get(key) or []
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise SettingsError(f"{self.file}: {self.place}.{key} must be a list of strings")
        return tuple(value)

    def named(self, collection: str, name: str, kind: str) -> _Fields:
        """Return what the list `collection` has under `kind` by this name; the error lists the names that are there."""
        entries = self.items(collection)
        for entry in entries:
            if entry.text("name") == name:
                found = entry.fields(kind)
                return found if found is not None else _Fields(self.file, f"{entry.place}.{kind}", {})
        known = ", ".join(entry.text("name") for entry in entries) or "none"
        raise SettingsError(f"{self.file}: no {kind} {name!r} in {collection} (there: {known})")


def _read(file: Path) -> Any:
    import yaml

    try:
        return yaml.safe_load(file.read_bytes())
    except OSError as error:
        raise SettingsError(f"kubeconfig {file} can't be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)  # the error's own text may quote secrets
        where = f" (line {mark.line + 1})" if mark is not None else ""
        raise SettingsError(f"kubeconfig {file} is no YAML{where}") from None


def _server(cluster: _Fields) -> str:
    text = cluster.required("server").rstrip("/")
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
        raise SettingsError(f"{cluster.file}: {cluster.place}.server: {text!r} is no URL such as https://10.0.0.1:6443")
    return text


def _proxy(cluster: _Fields) -> str | None:
    text = cluster.text("proxy-url")
    if text and urlsplit(text).scheme not in ("http", "https"):
        raise SettingsError(f"{cluster.file}: {cluster.place}.proxy-url: only http and https proxies are supported")
    return text or None


def _tls(cluster: _Fields, user: _Fields) -> Tls:
    tls = Tls(
        ca_data=cluster.data("certificate-authority-data"),
        ca_file=cluster.path("certificate-authority"),
        certificate_data=user.data("client-certificate-data"),
        certificate_file=user.path("client-certificate"),
        key_data=user.data("client-key-data"),
        key_file=user.path("client-key"),
        server_name=cluster.text("tls-server-name") or None,
        verify=not cluster.flag("insecure-skip-tls-verify"),
    )
    has_certificate = bool(tls.certificate_data or tls.certificate_file)
    if has_certificate != bool(tls.key_data or tls.key_file):
        raise SettingsError(f"{user.file}: {user.place}: client-certificate and client-key come in pairs")
    return tls


def _token(user: _Fields) -> Token:
    for key in ("auth-provider", "username", "password"):
        if user.text(key) if key != "auth-provider" else user.fields(key):
            raise SettingsError(
                f"{user.file}: {user.place}.{key} is not supported (Kubernetes dropped it): use token, tokenFile, "
                "a client certificate or exec"
            )
    if user.text("token"):
        return FixedToken(user.text("token"))
    file = user.path("tokenFile")
    if file is not None:
        return FileToken(file)
    plugin = user.fields("exec")
    return ExecToken(_plugin(plugin)) if plugin is not None else NoToken()


def _plugin(fields: _Fields) -> ExecPlugin:
    version = fields.required("apiVersion")
    if version not in ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"):
        raise SettingsError(f"{fields.file}: {fields.place}.apiVersion: {version!r} is neither v1 nor v1beta1")
    if fields.text("interactiveMode") == "Always":
        raise SettingsError(f"{fields.file}: {fields.place}.interactiveMode: Always: nobody is there to answer")
    command = fields.required("command")
    if "/" in command:
        command = str(fields.file.parent / command)
    environment = tuple((one.required("name"), one.text("value")) for one in fields.items("env"))
    return ExecPlugin(command=command, arguments=fields.texts("args"), environment=environment, api_version=version)

"""Who is asking: bearer tokens of people and of service accounts.

Service account tokens are JWTs signed with a key of this server, with the claims that a bound token has, so that
`authentication.kubernetes.io/node-name` reaches admission as it does in a real cluster.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

MASTERS = "system:masters"
NODE_NAME = "authentication.kubernetes.io/node-name"
"""The extra of a user whose token is bound to a node, or to a pod on one."""
_ISSUER = "https://kubernetes.default.svc"


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """An authenticated client."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, list[str]] = field(default_factory=dict)


ANONYMOUS = User(name="system:anonymous", groups=("system:unauthenticated",))


class Tokens:
    """Issues tokens and recognises them."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._static: dict[str, User] = {}
        self._seen: dict[str, tuple[User, float]] = {}

    def issue(self, user: User) -> str:
        """Return a new token for a user; it never expires."""
        token = secrets.token_urlsafe(24)
        self._static[token] = user
        return token

    def issue_bound(self, namespace: str, account: Mapping[str, Any], request: Mapping[str, Any]) -> tuple[str, float]:
        """Return a service account's token and when it expires (unix time).

        `account` is the ServiceAccount, `request` has `expires` (seconds), `audiences`, and, for a bound token,
        `pod` (name, uid) and `node` (name, uid).
        """
        now = time.time()
        expires = now + int(request.get("expires") or 3600)
        bound = {key: request[key] for key in ("pod", "node") if request.get(key)}
        owner = {"name": account["name"], "uid": account.get("uid", "")}
        claims = {
            "aud": list(request.get("audiences") or [_ISSUER]),
            "exp": int(expires),
            "iat": int(now),
            "iss": _ISSUER,
            "jti": str(uuid.uuid4()),
            "kubernetes.io": {"namespace": namespace, "serviceaccount": owner, **bound},
            "sub": f"system:serviceaccount:{namespace}:{account['name']}",
        }
        head = _encode({"alg": "HS256", "typ": "JWT"})
        text = f"{head}.{_encode(claims)}"
        return f"{text}.{self._signature(text)}", expires

    def authenticate(self, token: str) -> User | None:
        """Return who a token belongs to, None if it is not valid (any more)."""
        if user := self._static.get(token):
            return user
        seen = self._seen.get(token)
        if seen is None:
            seen = self._verified(token)
            if seen is None:
                return None
            self._seen[token] = seen
        return seen[0] if seen[1] > time.time() else None

    def _signature(self, text: str) -> str:
        return _base64(hmac.new(self._key, text.encode(), hashlib.sha256).digest())

    def _verified(self, token: str) -> tuple[User, float] | None:
        text, _, signature = token.rpartition(".")
        if not text or not hmac.compare_digest(signature.encode(), self._signature(text).encode()):
            return None
        payload = text.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return _service_account(claims), float(claims["exp"])


def _service_account(claims: Mapping[str, Any]) -> User:
    about = claims["kubernetes.io"]
    namespace = about["namespace"]
    extra = {}
    if "node" in about:
        extra[NODE_NAME] = [about["node"]["name"]]
    if "pod" in about:
        extra["authentication.kubernetes.io/pod-name"] = [about["pod"]["name"]]
    return User(
        name=claims["sub"],
        groups=("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"),
        uid=about["serviceaccount"]["uid"],
        extra=extra,
    )


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _encode(value: Mapping[str, Any]) -> str:
    return _base64(json.dumps(value, separators=(",", ":")).encode())

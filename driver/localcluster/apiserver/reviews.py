"""Questions that are asked by creating an object which is never stored: who am I, may I, whose token is this."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from driver.localcluster.apiserver import answers
from driver.localcluster.apiserver.audit import Call
from driver.localcluster.apiserver.identity import User

if TYPE_CHECKING:
    from aiohttp import web

    from driver.localcluster.apiserver.authorization import Authorizer
    from driver.localcluster.apiserver.identity import Tokens
    from driver.localcluster.apiserver.objects import Object
    from driver.localcluster.apiserver.registry import Target


_EVERYTHING: Final = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}


class Reviews:
    """Answers such questions."""

    def __init__(self, tokens: Tokens, authorizer: Authorizer) -> None:
        self._tokens = tokens
        self._authorizer = authorizer

    def answer(self, target: Target, body: Object, user: User) -> web.StreamResponse:
        """Answer one question."""
        spec = body.get("spec") or {}
        kind = target.served.resource.kind
        if kind == "SelfSubjectReview":
            status: Object = {"userInfo": _info(user)}
        elif kind == "SelfSubjectRulesReview":
            status = self._rules(str(spec.get("namespace", "")), user)
        elif kind == "TokenReview":
            status = self._token(str(spec.get("token", "")))
        else:
            asking = user
            if kind != "SelfSubjectAccessReview":
                asking = User(name=str(spec.get("user", "")), groups=tuple(spec.get("groups") or ()))
            status = {"allowed": self._allowed(spec, asking)}
        about = {"kind": kind, "apiVersion": target.served.api_version, "metadata": {"creationTimestamp": None}}
        return answers.json_answer({**about, "spec": spec, "status": status}, status=201)

    def _token(self, token: str) -> Object:
        found = self._tokens.authenticate(token)
        if found is None:
            return {"user": {}, "error": "invalid bearer token"}
        return {"authenticated": True, "user": _info(found)}

    def _rules(self, namespace: str, user: User) -> Object:
        rules = list(self._authorizer.rules(user, namespace)) if self._authorizer.enforce else [_EVERYTHING]
        of_resources = [dict(rule) for rule in rules if rule.get("resources")]
        others = [dict(rule) for rule in rules if rule.get("nonResourceURLs")]
        return {"resourceRules": of_resources, "nonResourceRules": others, "incomplete": False}

    def _allowed(self, spec: Object, user: User) -> bool:
        about: dict[str, Any] = spec.get("resourceAttributes") or {}
        plain: dict[str, Any] = spec.get("nonResourceAttributes") or {}
        call = Call(
            user=user.name,
            verb=str(about.get("verb") or plain.get("verb") or ""),
            group=str(about.get("group", "")),
            resource=str(about.get("resource", "")),
            subresource=str(about.get("subresource", "")),
            namespace=str(about.get("namespace", "")),
            name=str(about.get("name", "")),
            path=str(plain.get("path", "")),
        )
        return not self._authorizer.enforce or self._authorizer.allows(user, call)


def _info(user: User) -> Object:
    info: Object = {"username": user.name, "groups": list(user.groups)}
    if user.uid:
        info["uid"] = user.uid
    return info | ({"extra": dict(user.extra)} if user.extra else {})

from __future__ import annotations

import pytest
import yaml

from driver.localcluster.apiserver import Features
from driver.localcluster.apiserver.audit import Call
from driver.localcluster.apiserver.authorization import Authorizer
from driver.localcluster.apiserver.identity import MASTERS, User
from tests.unit.localcluster.apiserver.conftest import CLAIMS, PODS, SLICES, Client, a_slice, claim, pod

GROUP = "resource.k8s.io"


def call(verb="get", resource="resourceclaims", group=GROUP, **more):
    return Call(user="u", verb=verb, group=group, resource=resource, **more)


@pytest.fixture
def authorizer(store):
    return Authorizer(store, enforce=True)


def grant(store, rule, subject, *, namespace=""):
    """Bind a rule to a subject, in the whole cluster or in a namespace."""
    plural = ("roles", "rolebindings") if namespace else ("clusterroles", "clusterrolebindings")
    kind = "Role" if namespace else "ClusterRole"
    store.create(plural[0], {"metadata": {"name": "r"}, "rules": [rule]}, namespace or None)
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": "r"}
    binding = {"metadata": {"name": "r"}, "roleRef": reference, "subjects": [subject]}
    store.create(plural[1], binding, namespace or None)


READ = {"apiGroups": [GROUP], "resources": ["resourceclaims"], "verbs": ["get"]}


def test_nothing_is_allowed_without_a_rule(authorizer):
    assert not authorizer.allows(User(name="u"), call())


def test_masters_may_do_everything(authorizer):
    assert authorizer.allows(User(name="u", groups=(MASTERS,)), call("delete", "nodes", ""))


@pytest.mark.parametrize(
    ("rule", "asked", "allowed"),
    [
        (READ, call(), True),
        (READ, call("list"), False),
        (READ, call(resource="resourceslices"), False),
        (READ, call(group=""), False),
        (READ, call(subresource="status"), False),
        ({**READ, "resources": ["resourceclaims/status"]}, call(subresource="status"), True),
        ({**READ, "resources": ["*/status"]}, call(subresource="status"), True),
        ({**READ, "resources": ["*"]}, call(subresource="status"), True),
        ({**READ, "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}, call("delete", "nodes", ""), True),
        ({**READ, "resourceNames": ["c"]}, call(name="c"), True),
        ({**READ, "resourceNames": ["c"]}, call(name="d"), False),
        ({**READ, "resourceNames": ["c"]}, call(), False),
    ],
)
def test_rules(store, authorizer, rule, asked, allowed):
    grant(store, rule, {"kind": "User", "name": "u"})
    assert authorizer.allows(User(name="u"), asked) is allowed


@pytest.mark.parametrize(
    ("subject", "user"),
    [
        ({"kind": "User", "name": "u"}, User(name="u")),
        ({"kind": "Group", "name": "g"}, User(name="u", groups=("g",))),
        ({"kind": "ServiceAccount", "name": "a", "namespace": "n"}, User(name="system:serviceaccount:n:a")),
    ],
)
def test_subjects(store, authorizer, subject, user):
    grant(store, READ, subject)
    assert authorizer.allows(user, call())
    assert not authorizer.allows(User(name="other", groups=("other",)), call())


def test_a_role_holds_in_its_namespace_only(store, authorizer):
    grant(store, READ, {"kind": "User", "name": "u"}, namespace="default")
    assert authorizer.allows(User(name="u"), call(namespace="default"))
    assert not authorizer.allows(User(name="u"), call(namespace="other"))
    assert not authorizer.allows(User(name="u"), call())


@pytest.fixture
async def agent(server):
    """A client with the token of a service account on a node, on a server that enforces RBAC."""
    store = server.store
    store.create("nodes", {"metadata": {"name": "n1"}})
    store.create("serviceaccounts", {"metadata": {"name": "agent"}}, "default")
    server.authorizer.enforce = True
    found = Client(server, server.token_for_service_account("default", "agent", node="n1"))
    yield found
    await found.session.close()


async def test_a_refusal_says_who_may_not_do_what(agent):
    found = await agent.ask("GET", SLICES)
    assert found.status == 403
    assert found.body["message"] == (
        'resourceslices.resource.k8s.io is forbidden: User "system:serviceaccount:default:agent" cannot list resource '
        '"resourceslices" in API group "resource.k8s.io" at the cluster scope'
    )
    one = await agent.ask("GET", f"{CLAIMS}/c")
    assert 'resourceclaims.resource.k8s.io "c" is forbidden' in one.body["message"]
    assert 'in the namespace "default"' in one.body["message"]


async def test_a_rule_lets_the_account_in(agent):
    subject = {"kind": "ServiceAccount", "name": "agent", "namespace": "default"}
    grant(agent.server.store, {"apiGroups": [GROUP], "resources": ["resourceslices"], "verbs": ["create"]}, subject)
    assert (await agent.ask("POST", SLICES, a_slice())).status == 201


async def test_discovery_needs_no_rule(agent):
    for path in ("/api", "/apis", f"/apis/{GROUP}", f"/apis/{GROUP}/v1", "/version", "/openapi/v3"):
        assert (await agent.ask("GET", path)).status == 200


async def test_a_token_knows_its_node(agent):
    found = await agent.ask("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {})
    info = found.body["status"]["userInfo"]
    assert info["username"] == "system:serviceaccount:default:agent"
    assert info["extra"] == {"authentication.kubernetes.io/node-name": ["n1"]}
    assert "system:serviceaccounts:default" in info["groups"]


async def test_may_i(agent):
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    about = {"verb": "get", "group": GROUP, "resource": "resourceclaims", "namespace": "default"}
    assert (await agent.ask("POST", path, {"spec": {"resourceAttributes": about}})).body["status"] == {"allowed": False}
    grant(agent.server.store, READ, {"kind": "ServiceAccount", "name": "agent", "namespace": "default"})
    assert (await agent.ask("POST", path, {"spec": {"resourceAttributes": about}})).body["status"] == {"allowed": True}


@pytest.mark.parametrize("token", ["", "nonsense", "a.b.c"])
async def test_who_is_not_known_is_401(server, token):
    stranger = Client(server, token)
    found = await stranger.ask("GET", SLICES)
    assert (found.status, found.body["reason"]) == (401, "Unauthorized")
    assert (await stranger.ask("GET", "/healthz")).text == "ok"
    await stranger.session.close()


async def test_a_forged_token_is_not_known(server):
    server.store.create("serviceaccounts", {"metadata": {"name": "agent"}}, "default")
    token = server.token_for_service_account("default", "agent")
    assert server.tokens.authenticate(token).name == "system:serviceaccount:default:agent"
    head, body, signature = token.split(".")
    assert server.tokens.authenticate(f"{head}.{body}x.{signature}") is None
    assert server.tokens.authenticate(f"{head}.{body}.") is None


async def test_a_token_expires(server, monkeypatch):
    import time

    server.store.create("serviceaccounts", {"metadata": {"name": "agent"}}, "default")
    path = "/api/v1/namespaces/default/serviceaccounts/agent/token"
    admin = Client(server, token_in(server.kubeconfig))
    asked = {"spec": {"expirationSeconds": 600}}
    token = (await admin.ask("POST", path, asked)).body["status"]["token"]
    assert server.tokens.authenticate(token)
    later = time.time() + 601
    monkeypatch.setattr(time, "time", lambda: later)
    assert server.tokens.authenticate(token) is None
    await admin.session.close()


async def test_a_token_can_be_bound_to_a_pod(client):
    store = client.server.store
    store.create("nodes", {"metadata": {"name": "n1"}})
    store.create("pods", pod(), "default")
    store.bind("p", "default", "n1")
    path = "/api/v1/namespaces/default/serviceaccounts/default/token"
    asked = {"spec": {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p"}}}
    token = (await client.ask("POST", path, asked)).body["status"]["token"]
    review = await client.ask("POST", "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": token}})
    extra = review.body["status"]["user"]["extra"]
    assert extra["authentication.kubernetes.io/node-name"] == ["n1"]
    assert extra["authentication.kubernetes.io/pod-name"] == ["p"]
    missing = await client.ask("POST", path, {"spec": {"boundObjectRef": {"kind": "Pod", "name": "nope"}}})
    assert missing.status == 404


async def test_a_users_kubeconfig_is_private_and_has_a_token(server):
    path = server.kubeconfig_for("visitor", groups=("readers",))
    assert path.stat().st_mode & 0o777 == 0o600
    visitor = Client(server, token_in(path))
    assert (await visitor.ask("GET", PODS)).status == 200
    await visitor.session.close()


def token_in(kubeconfig):
    return yaml.safe_load(kubeconfig.read_text())["users"][0]["user"]["token"]


RESULT = {"request": "r", "driver": "gpu.nvidia.com", "pool": "n1", "device": "gpu-0"}
STATUS = {"apiGroups": [GROUP], "resources": ["resourceclaims/status"], "verbs": ["patch", "update"]}
DEVICES = {"status": {"devices": [{"driver": "gpu.nvidia.com", "pool": "n1", "device": "gpu-0"}]}}


def driver_rule(*verbs):
    return {
        "apiGroups": [GROUP],
        "resources": ["resourceclaims/driver"],
        "resourceNames": ["gpu.nvidia.com"],
        "verbs": list(verbs),
    }


@pytest.mark.parametrize(
    ("rule", "node", "code"),
    [
        (driver_rule(), "n1", 403),
        (driver_rule("associated-node:update"), "n1", 403),
        (driver_rule("associated-node:patch"), "n1", 200),
        (driver_rule("associated-node:patch"), "n2", 403),
        (driver_rule("arbitrary-node:patch"), "n2", 200),
    ],
)  # fmt: skip
async def test_a_devices_status_is_for_its_driver_on_its_node(agent, rule, node, code):
    store = agent.server.store
    subject = {"kind": "ServiceAccount", "name": "agent", "namespace": "default"}
    grant(store, STATUS, subject)
    grant(store, rule, subject, namespace="default")
    made = store.create("resourceclaims", claim(), "default")
    values = [{"key": "metadata.name", "operator": "In", "values": [node]}]
    selector = {"nodeSelectorTerms": [{"matchFields": values}]}
    status = {"allocation": {"devices": {"results": [RESULT]}, "nodeSelector": selector}}
    store.update_status("resourceclaims", {**made, "status": status})
    found = await agent.patch(f"{CLAIMS}/c/status", DEVICES)
    assert found.status == code
    if code == 403:
        assert 'permission for driver "gpu.nvidia.com"' in found.body["message"]


async def test_an_older_server_asks_for_no_such_verb(agent):
    store = agent.server.store
    store.features = Features(kubernetes="1.35")
    grant(store, STATUS, {"kind": "ServiceAccount", "name": "agent", "namespace": "default"})
    made = store.create("resourceclaims", claim(), "default")
    store.update_status("resourceclaims", {**made, "status": {"allocation": {"devices": {"results": [RESULT]}}}})
    assert (await agent.patch(f"{CLAIMS}/c/status", DEVICES)).status == 200

"""Acting as somebody else, as `kubectl --as` does."""

from __future__ import annotations

import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from driver.localcluster.apiserver import ApiServer, StatusError
from driver.localcluster.apiserver.authorization import Authorizer
from driver.localcluster.apiserver.identity import MASTERS, User
from driver.localcluster.apiserver.impersonation import acting
from tests.unit.localcluster.apiserver.conftest import CONFIGMAPS

ADMIN = User(name="admin", groups=(MASTERS,))


def be(authorizer, user, *headers):
    return acting(CIMultiDictProxy(CIMultiDict(headers)), user, authorizer)


@pytest.fixture
def authorizer(store):
    return Authorizer(store, enforce=True)


def test_without_such_headers_nothing_changes(authorizer):
    assert be(authorizer, ADMIN, ("Accept", "x")) is ADMIN


def test_a_user_with_groups_and_extras(authorizer):
    headers = [
        ("impersonate-user", "bob"),
        ("Impersonate-Group", "a"),
        ("Impersonate-Group", "b"),
        ("Impersonate-Extra-Example.com%2Fnode", "n1"),
        ("Impersonate-Uid", "7"),
    ]
    found = be(authorizer, ADMIN, *headers)
    extra = {"example.com/node": ["n1"]}
    assert found == User(name="bob", groups=("a", "b", "system:authenticated"), uid="7", extra=extra)


def test_a_service_account_is_in_its_groups(authorizer):
    found = be(authorizer, ADMIN, ("Impersonate-User", "system:serviceaccount:n:a"))
    assert found.groups == ("system:serviceaccounts", "system:serviceaccounts:n", "system:authenticated")


def test_groups_need_a_user(authorizer):
    with pytest.raises(StatusError, match="Impersonate-User is missing"):
        be(authorizer, ADMIN, ("Impersonate-Group", "a"))


@pytest.mark.parametrize(
    ("headers", "what"),
    [
        ([("Impersonate-User", "bob")], 'users "bob"'),
        ([("Impersonate-User", "system:serviceaccount:n:a")], 'serviceaccounts "a"'),
        ([("Impersonate-User", "me"), ("Impersonate-Group", "g")], 'groups "g"'),
        ([("Impersonate-User", "me"), ("Impersonate-Extra-x", "y")], 'userextras/x.authentication.k8s.io "y"'),
    ],
)
def test_only_who_may_impersonate_does(store, authorizer, headers, what):
    rule = {"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"], "resourceNames": ["me"]}
    store.create("clusterroles", {"metadata": {"name": "r"}, "rules": [rule]})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"}
    subjects = [{"kind": "User", "name": "u"}]
    store.create("clusterrolebindings", {"metadata": {"name": "r"}, "roleRef": role, "subjects": subjects})
    with pytest.raises(StatusError) as caught:
        be(authorizer, User(name="u"), *headers)
    assert caught.value.code == 403
    assert caught.value.message.startswith(f'{what} is forbidden: User "u" cannot impersonate resource')


async def test_over_http(client, server: ApiServer):
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    found = await client.ask("POST", path, {}, **{"Impersonate-User": "bob"})
    assert found.body["status"]["userInfo"]["username"] == "bob"
    await client.ask("GET", CONFIGMAPS, **{"Impersonate-User": "bob"})
    assert server.audit.calls[-1].user == "bob"
    client.token = ""
    assert (await client.ask("GET", CONFIGMAPS, **{"Impersonate-User": "admin"})).status == 401

from __future__ import annotations

import pytest

from driver.localcluster.apiserver import StatusError
from driver.localcluster.apiserver.fields import declared, fields_of, type_name
from driver.localcluster.apiserver.resources import RESOURCES, REVIEWS
from driver.localcluster.apiserver.schema import check


@pytest.mark.parametrize("resource", [*RESOURCES.values(), *REVIEWS.values()], ids=lambda resource: resource.plural)
def test_every_kind_is_in_the_table(resource):
    assert type_name(resource.api_version, resource.kind)


def test_every_type_that_a_field_names_is_in_the_table():
    named = {field.type for fields in declared().values() for field in fields if field.is_message}
    assert named <= set(declared())


def test_keys_of_lists_are_fields_of_their_elements():
    for fields in declared().values():
        for field in fields:
            if field.is_message and field.shape == "list":
                keys = {*field.keys, *([field.merge_key] if field.merge_key else [])}
                assert keys <= set(fields_of(field.type)), field


def test_fields_are_named_as_json_names_them():
    upper = {
        (name, field.name) for name, fields in declared().items() for field in fields if not field.name[0].islower()
    }
    assert upper == {("core.DaemonEndpoint", "Port")}  # JSON's own spelling


@pytest.mark.parametrize(
    ("obj", "path"),
    [
        ({"colour": 1}, "colour"),
        ({"spec": {"containers": [{"name": "c", "imagePolicy": "x"}]}}, "spec.containers[0].imagePolicy"),
        ({"spec": {"resourceClaim": []}}, "spec.resourceClaim"),
        ({"metadata": {"label": {}}}, "metadata.label"),
        ({"spec": {"containers": [{"resources": {"limit": {}}}]}}, "spec.containers[0].resources.limit"),
    ],
)
def test_unknown_fields_go_and_are_told(obj, path):
    checked, warnings = check("v1", "Pod", obj, "Warn")
    assert warnings == [f'unknown field "{path}"']
    assert path.rpartition(".")[2] not in str(checked)
    assert check("v1", "Pod", obj, "Ignore")[1] == []
    with pytest.raises(StatusError, match="strict decoding error"):
        check("v1", "Pod", obj, "Strict")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"nodeName": 5}, "cannot unmarshal number into Go struct field PodSpec.spec.nodeName of type string"),
        ({"hostNetwork": "yes"}, "cannot unmarshal string into Go struct field PodSpec.spec.hostNetwork of type bool"),
        ({"priority": "1"}, "cannot unmarshal string into Go struct field PodSpec.spec.priority of type int64"),
        ({"priority": 1.5}, "cannot unmarshal number into Go struct field PodSpec.spec.priority of type int64"),
        ({"priority": True}, "cannot unmarshal bool into Go struct field PodSpec.spec.priority of type int64"),
        ({"containers": {}}, "struct field PodSpec.spec.containers of type []core."),
        ({"containers": ["x"]}, "cannot unmarshal string into Go struct field PodSpec.spec.containers"),
        ({"nodeSelector": []}, "array into Go struct field PodSpec.spec.nodeSelector of type map[string]string"),
        ({"affinity": 1}, "of type core.Affinity"),
        ({"overhead": {"cpu": "1x"}}, "quantities must match the regular expression"),
        ({"overhead": {"cpu": {}}}, "quantities must match the regular expression"),
        ({"containers": [{"env": [{"name": "A", "value": 1}]}]}, "EnvVar.spec.containers.env.value of type string"),
    ],
)  # fmt: skip
def test_wrong_types_are_400(spec, message):
    with pytest.raises(StatusError) as caught:
        check("v1", "Pod", {"spec": spec})
    assert caught.value.code == 400
    assert caught.value.message.startswith('Pod in version "v1" cannot be handled as a Pod: ')
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("kind", "obj", "message"),
    [
        ("Pod", {"metadata": {"creationTimestamp": "yesterday"}}, 'parsing time "yesterday"'),
        ("Pod", {"metadata": {"creationTimestamp": 5}}, "of type string"),
        ("Secret", {"data": {"a": "???"}}, "illegal base64 data"),
        ("Secret", {"data": {"a": 5}}, "of type []uint8"),
        ("Service", {"spec": {"ports": [{"targetPort": []}]}}, "of type intstr.IntOrString"),
    ],
)
def test_special_types(kind, obj, message):
    with pytest.raises(StatusError) as caught:
        check("v1", kind, obj)
    assert message in caught.value.message


def test_nulls_and_empty_lists_go_and_empty_messages_stay():
    spec = {"nodeName": None, "containers": [], "nodeSelector": {}, "volumes": [{"name": "v", "emptyDir": {}}]}
    assert check("v1", "Pod", {"spec": spec})[0] == {"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}}


def test_the_result_is_a_copy():
    labels = {"a": "b"}
    obj = {"metadata": {"labels": labels}}
    checked, _ = check("v1", "Pod", obj)
    assert checked == obj
    assert checked["metadata"]["labels"] is not labels


def test_opaque_parameters_stay_as_they_are():
    opaque = {"driver": "gpu.nvidia.com", "parameters": {"any": [None, {"x": []}]}}
    obj = {"spec": {"devices": {"config": [{"opaque": opaque}]}}}
    assert check("resource.k8s.io/v1", "ResourceClaim", obj)[0] == obj

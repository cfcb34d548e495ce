from __future__ import annotations

import pytest
import yaml

import driver
from driver.config.device_plugin import PluginConfig, decode_config
from driver.config.ownership import decode_rules
from driver.kubelet.sockets import registration_path, service_path
from driver.settings import load_settings
from tests.deploy.manifests import BUILDS, DEPLOY, OVERLAYS, agent, build, build_path, environment, load, one, pod_spec
from tests.deploy.rbac import Call, permitted

CLUSTER_SCOPED = {
    "Namespace",
    "ClusterRole",
    "ClusterRoleBinding",
    "DeviceClass",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}
UNPRIVILEGED = ("base", "overlays/nvidia", "overlays/fake")


@pytest.mark.parametrize("path", sorted(DEPLOY.rglob("*.yaml")), ids=lambda path: str(path.relative_to(DEPLOY)))
def test_every_file_is_yaml_without_repeated_keys(path):
    class Strict(yaml.SafeLoader):
        def construct_mapping(self, node, deep=False):
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            assert len(keys) == len(set(keys)), f"{path}: {node.start_mark.line + 1}: a key comes twice"
            return super().construct_mapping(node, deep)

    assert all(isinstance(item, dict) for item in yaml.load_all(path.read_text(), Loader=Strict))


@pytest.mark.parametrize(
    "folder", ["base", *OVERLAYS, *(f"components/{p.name}" for p in (DEPLOY / "components").iterdir())]
)
def test_every_file_of_a_folder_is_used_and_there(folder):
    kustomization = load(DEPLOY / folder / "kustomization.yaml")[0]
    patches = [patch["path"] for patch in kustomization.get("patches", []) if "path" in patch]
    files = [name for name in kustomization.get("resources", []) + patches if name.endswith(".yaml")]
    assert sorted([*files, "kustomization.yaml"]) == sorted(path.name for path in (DEPLOY / folder).iterdir())


@pytest.mark.parametrize("name", BUILDS)
def test_each_object_once_and_in_its_scope(name):
    objects = build(name)
    names = [(item["kind"], item["metadata"]["name"]) for item in objects]
    assert len(names) == len(set(names))
    namespace = one(objects, "Namespace")["metadata"]["name"]
    for item in objects:
        wanted = None if item["kind"] in CLUSTER_SCOPED else namespace
        assert item["metadata"].get("namespace") == wanted, item["kind"]


@pytest.mark.parametrize("name", BUILDS)
def test_the_settings_are_ones_that_the_agent_takes(name):
    settings = load_settings(environ=environment(build(name)))
    assert settings.node_name == "node-1"
    assert settings.pod_uid
    assert settings.log_format == "json"
    assert settings.fake == (name == "overlays/fake")
    assert agent(build(name))["args"] == ["run"]


def check_paths(objects):
    settings = load_settings(environ=environment(objects))
    volumes = {volume["name"]: volume["hostPath"]["path"] for volume in pod_spec(objects)["volumes"]}
    mounts = {mount["mountPath"]: mount for mount in agent(objects)["volumeMounts"]}
    writable = {path for path, mount in mounts.items() if not mount.get("readOnly")}
    same = {path for path, mount in mounts.items() if volumes[mount["name"]] == path}
    for needed in (
        settings.state,
        service_path(settings.plugins_dir, settings.pod_uid).parent,
        registration_path(settings.registry_dir, settings.pod_uid).parent,
        settings.device_plugins_dir,
        settings.cdi_dir,
    ):
        assert str(needed) in writable & same
    pod_resources = str(settings.pod_resources_socket.parent)
    assert pod_resources in same
    assert mounts[pod_resources]["readOnly"] is True


@pytest.mark.parametrize("name", BUILDS)
def test_what_the_agent_writes_and_serves_is_on_the_host_by_the_same_path(name):
    check_paths(build(name))


@pytest.mark.parametrize("name", BUILDS)
def test_K4_one_replacement_is_all_that_a_kubelet_elsewhere_takes(name):
    text = yaml.safe_dump_all(build(name)).replace("/var/lib/kubelet", "/var/lib/k0s/kubelet")
    objects = tuple(yaml.safe_load_all(text))
    assert str(load_settings(environ=environment(objects)).kubelet_root) == "/var/lib/k0s/kubelet"
    check_paths(objects)


@pytest.mark.parametrize("name", BUILDS)
def test_every_mount_has_a_volume_and_every_volume_a_mount(name):
    volumes = [volume["name"] for volume in pod_spec(build(name))["volumes"]]
    mounts = [mount["name"] for mount in agent(build(name))["volumeMounts"]]
    assert sorted(volumes) == sorted(mounts)
    assert len(set(volumes)) == len(volumes)


@pytest.mark.parametrize("name", ["overlays/nvidia", "overlays/mig-mps"])
def test_the_hosts_root_is_read_only_and_where_the_settings_say(name):
    settings = load_settings(environ=environment(build(name)))
    (mount,) = [mount for mount in agent(build(name))["volumeMounts"] if mount["name"] == "host"]
    assert mount == {
        "name": "host",
        "mountPath": str(settings.driver_root),
        "readOnly": True,
        "mountPropagation": "HostToContainer",
    }
    assert str(settings.host_driver_root) == "/"
    assert all(path.is_relative_to(settings.driver_root) for path in settings.container_runtime_configs)


@pytest.mark.parametrize("name", BUILDS)
def test_A14_probes_ask_what_the_agent_answers(name):
    container = agent(build(name))
    settings = load_settings(environ=environment(build(name)))
    assert settings.http_address is not None
    assert container["ports"] == [{"name": "http", "containerPort": settings.http_address.port}]
    probes = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
    assert probes == {
        "startup": {"path": "/healthz", "port": "http"},
        "liveness": {"path": "/healthz", "port": "http"},
        "readiness": {"path": "/readyz", "port": "http"},
    }


@pytest.mark.parametrize("name", UNPRIVILEGED)
def test_no_privileges(name):
    spec, container = pod_spec(build(name)), agent(build(name))
    assert container["securityContext"] == {
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)


def test_the_base_and_the_fake_see_nothing_of_the_host_but_the_kubelets_and_cdis_directories():
    for name in ("base", "overlays/fake"):
        assert sorted(volume["hostPath"]["path"] for volume in pod_spec(build(name))["volumes"]) == [
            "/var/lib/kubelet/device-plugins",
            "/var/lib/kubelet/plugins/gpu.nvidia.com",
            "/var/lib/kubelet/plugins_registry",
            "/var/lib/kubelet/pod-resources",
            "/var/run/cdi",
        ]


def test_changing_mig_and_running_mps_take_privileges():
    spec, container = pod_spec(build("overlays/mig-mps")), agent(build("overlays/mig-mps"))
    assert container["securityContext"]["privileged"] is True
    assert "capabilities" not in container["securityContext"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert spec["hostPID"] is True
    assert {"/dev", "/dev/shm"} <= {mount["mountPath"] for mount in container["volumeMounts"]}


def test_mps_daemons_outlive_the_agents_container():
    """It takes the host's pid namespace, its /dev/shm by the same path, and a control group outside the container's."""
    spec, container = pod_spec(build("overlays/mig-mps")), agent(build("overlays/mig-mps"))
    settings = load_settings(environ=environment(build("overlays/mig-mps")))
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"]}
    assert spec["hostPID"] is True
    assert settings.mps_cgroup is not None
    group = mounts[str(settings.mps_cgroup.parent)]
    assert volumes[group["name"]] == "/sys/fs/cgroup"
    assert not group.get("readOnly")
    shared = mounts[str(settings.mps_shm_dir.parent)]
    assert volumes[shared["name"]] == str(settings.mps_shm_dir.parent)


def test_without_privileges_the_toolkit_gives_the_agent_its_device_nodes():
    assert pod_spec(build("overlays/nvidia"))["runtimeClassName"] == "nvidia"
    assert environment(build("overlays/nvidia"))["NVIDIA_VISIBLE_DEVICES"] == "all"


@pytest.mark.parametrize("name", BUILDS)
def test_the_new_agent_is_up_before_the_old_one_goes(name):
    daemonset = one(build(name), "DaemonSet")
    assert daemonset["spec"]["updateStrategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
    }
    spec = daemonset["spec"]["template"]["spec"]
    assert "hostPort" not in spec["containers"][0]["ports"][0]
    assert spec["priorityClassName"] == "system-node-critical"
    assert {"key": "nvidia.com/gpu", "operator": "Exists"} in spec["tolerations"]
    assert spec["serviceAccountName"] == one(build(name), "ServiceAccount")["metadata"]["name"]
    assert (
        daemonset["spec"]["selector"]["matchLabels"].items()
        <= daemonset["spec"]["template"]["metadata"]["labels"].items()
    )


@pytest.mark.parametrize("name", BUILDS)
def test_gpu_nodes_only_but_for_the_fake(name):
    assert ("affinity" in pod_spec(build(name))) == (name != "overlays/fake")


@pytest.mark.parametrize("name", ["base", "overlays/nvidia", "overlays/mig-mps"])
def test_a_node_with_any_label_of_gpu_nodes_has_the_agent(name):
    terms = pod_spec(build(name))["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    keys = [expression["key"] for term in terms["nodeSelectorTerms"] for expression in term["matchExpressions"]]
    assert keys == [
        "feature.node.kubernetes.io/pci-10de.present",
        "feature.node.kubernetes.io/pci-0302_10de.present",  # 3D controllers
        "feature.node.kubernetes.io/pci-0300_10de.present",  # display controllers
        "nvidia.com/gpu.present",
        "cloud.google.com/gke-accelerator",
    ]
    assert all(len(term["matchExpressions"]) == 1 for term in terms["nodeSelectorTerms"])


@pytest.mark.parametrize("name", BUILDS)
def test_resources_are_bounded(name):
    resources = agent(build(name))["resources"]
    assert set(resources["requests"]) == {"cpu", "memory"}
    assert "memory" in resources["limits"]


@pytest.mark.parametrize("name", BUILDS)
def test_the_images_tag_is_this_version(name):
    assert agent(build(name))["image"] == f"gpu-dra:{driver.__version__}"


@pytest.mark.parametrize("name", BUILDS)
def test_the_namespace_admits_pods_with_host_paths(name):
    labels = one(build(name), "Namespace")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "privileged"


@pytest.fixture
def built_with(tmp_path):
    def build_with(component: str, base: str = "base", *more: str):
        target = tmp_path / "kustomization.yaml"
        # Kustomize wants relative paths and, by default, nothing outside.
        deploy = "../" * len(tmp_path.resolve().parts[1:]) + str(DEPLOY)[1:]
        components = ", ".join(f"{deploy}/components/{name}" for name in (component, *more))
        target.write_text(f"resources: [{deploy}/{base}]\ncomponents: [{components}]\n")
        return build_path(tmp_path, "--load-restrictor=LoadRestrictionsNone")

    return build_with


@pytest.mark.parametrize("base", ["overlays/nvidia", "overlays/mig-mps"])
def test_components_go_together(built_with, base):
    """All but the one for old clusters, and the one that the overlay has already."""
    first, *others = sorted(
        {path.name for path in (DEPLOY / "components").iterdir()} - {"resource-v1beta1", "host-root"}
    )
    objects = built_with(first, base, *others)
    assert environment(objects) == environment(built_with(others[-1], base, *others[-2::-1], first))
    settings = load_settings(environ=environment(objects))
    assert (settings.labels, settings.mps, settings.serves_device_plugin) == ("nfd", "pod", True)
    assert str(settings.host_driver_root) == "/run/nvidia/driver"


def test_extended_resources_are_offered_only_where_asked_for(built_with):
    assert not [item for item in build("base") if "extendedResourceName" in item.get("spec", {})]
    objects = built_with("extended-resource")
    assert one(objects, "DeviceClass", "gpu.nvidia.com")["spec"]["extendedResourceName"] == "nvidia.com/gpu"
    assert "extendedResourceName" not in one(objects, "DeviceClass", "mig.nvidia.com")["spec"]


def test_device_classes_for_older_clusters(built_with):
    objects = built_with("resource-v1beta1")
    assert {item["apiVersion"] for item in objects if item["kind"] == "DeviceClass"} == {"resource.k8s.io/v1beta1"}
    assert {item["apiVersion"] for item in build("base") if item["kind"] == "DeviceClass"} == {"resource.k8s.io/v1"}


def test_mps_daemons_as_pods_in_the_agents_namespace(built_with):
    objects = built_with("mps-pod", "overlays/mig-mps")
    settings = load_settings(environ=environment(objects))
    assert settings.mps == "pod"
    assert settings.mps_namespace == one(objects, "Namespace")["metadata"]["name"]
    assert (settings.mps_image, bool(settings.pod_uid)) == ("", True)
    role = one(objects, "Role")
    assert role["metadata"]["namespace"] == settings.mps_namespace
    assert permitted(role["rules"]) == {Call(verb, "", "pods") for verb in ("get", "list", "watch", "create", "delete")}
    binding, account = one(objects, "RoleBinding"), one(objects, "ServiceAccount")["metadata"]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}
    ]
    shared = [
        mount for mount in agent(objects)["volumeMounts"] if settings.mps_shm_dir.is_relative_to(mount["mountPath"])
    ]
    assert shared


def test_labels_through_node_feature_discovery(built_with):
    objects = built_with("nfd-labels")
    settings = load_settings(environ=environment(objects))
    assert (settings.labels, settings.labels_at_exit) == ("nfd", "remove")
    (mount,) = [mount for mount in agent(objects)["volumeMounts"] if mount["name"] == "features"]
    assert mount["mountPath"] == str(settings.labels_file.parent)


def test_the_device_plugin_has_configs_and_rules_that_can_be_read(built_with):
    objects = built_with("device-plugin")
    settings = load_settings(environ=environment(objects))
    assert settings.serves_device_plugin
    mounts = {mount["mountPath"]: mount["name"] for mount in agent(objects)["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod_spec(objects)["volumes"]}

    def mounted(path):
        return one(objects, "ConfigMap", volumes[mounts[str(path)]]["configMap"]["name"])["data"]

    configs = mounted(settings.device_plugin_config)
    assert [decode_config(yaml.safe_load(text), name) for name, text in configs.items()] == [PluginConfig()]
    rules = mounted(settings.ownership_file.parent)[settings.ownership_file.name]
    assert decode_rules(yaml.safe_load(rules), "rules").default == "device-plugin"


@pytest.mark.parametrize("base", ["overlays/nvidia", "overlays/fake"])
def test_on_selinux_an_unprivileged_agent_may_use_the_kubelets_directories(built_with, base):
    context = pod_spec(built_with("selinux", base))["securityContext"]
    assert context == {**pod_spec(build(base))["securityContext"], "seLinuxOptions": {"type": "spc_t"}}


@pytest.mark.parametrize("base", ["overlays/nvidia", "overlays/mig-mps"])
def test_a_driver_in_a_container_of_its_own(built_with, base):
    objects = built_with("driver-container", base)
    settings = load_settings(environ=environment(objects))
    host = next(mount["mountPath"] for mount in agent(objects)["volumeMounts"] if mount["name"] == "host")
    assert str(settings.driver_root) == f"{host}{settings.host_driver_root}" == "/host/run/nvidia/driver"


def test_a_quota_that_admits_the_priority_class(built_with):
    objects = built_with("priority-quota")
    quota = one(objects, "ResourceQuota")
    assert quota["metadata"]["namespace"] == one(objects, "DaemonSet")["metadata"]["namespace"]
    (scope,) = quota["spec"]["scopeSelector"]["matchExpressions"]
    assert scope["scopeName"] == "PriorityClass"
    assert pod_spec(objects)["priorityClassName"] in scope["values"]

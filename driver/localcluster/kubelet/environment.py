"""A container's environment variables: values, references to the pod's fields, config maps and secrets. Pure."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Any

from driver.localcluster.apiserver.objects import lookup
from driver.localcluster.containers.errors import ContainerError

if TYPE_CHECKING:
    from collections.abc import Callable

    from driver.localcluster.apiserver.objects import Object

_REFERENCE = re.compile(r"\$(\$)?\(([A-Za-z_][-A-Za-z0-9_.]*)\)")
_KEYED = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


def environment(pod: Object, container: dict[str, Any], find: Callable[[str, str], Object | None]) -> dict[str, str]:
    """Return the variables of a container. `find(resource, name)` reads an object of the pod's namespace.

    :raises ContainerError: CreateContainerConfigError: something referred to is missing.
    """
    result: dict[str, str] = {}
    for source in container.get("envFrom") or ():
        result.update(_whole(source, find))
    for item in container.get("env") or ():
        if "valueFrom" in item:
            value = _referred(pod, container, item["valueFrom"], find)
            if value is not None:
                result[item["name"]] = value
        else:
            result[item["name"]] = expand(item.get("value") or "", result)
    return result


def expand(text: str, variables: dict[str, str]) -> str:
    """Replace `$(NAME)` by a known variable's value; an unknown one stays, `$$(NAME)` becomes `$(NAME)`."""

    def replace(match: re.Match[str]) -> str:
        return match[0][1:] if match[1] else variables.get(match[2], match[0])

    return _REFERENCE.sub(replace, text)


def _whole(source: dict[str, Any], find: Callable[[str, str], Object | None]) -> dict[str, str]:
    for key, resource in (("configMapRef", "configmaps"), ("secretRef", "secrets")):
        if key in source:
            data = _data(resource, source[key], find)
            return {f"{source.get('prefix', '')}{name}": value for name, value in data.items()}
    return {}


def _referred(
    pod: Object, container: dict[str, Any], source: dict[str, Any], find: Callable[[str, str], Object | None]
) -> str | None:
    if "fieldRef" in source:
        return field(pod, source["fieldRef"]["fieldPath"])
    if "resourceFieldRef" in source:
        kind, _, name = source["resourceFieldRef"]["resource"].partition(".")
        return str(container.get("resources", {}).get(kind, {}).get(name, "0"))
    for key, resource in (("configMapKeyRef", "configmaps"), ("secretKeyRef", "secrets")):
        if key in source:
            data = _data(resource, source[key], find)
            if source[key]["key"] in data or source[key].get("optional"):
                return data.get(source[key]["key"])
            where = f"{resource[:-1]} {source[key]['name']}"
            raise _config_error(f"couldn't find key {source[key]['key']} in {where}")
    raise _config_error(f"unsupported valueFrom: {', '.join(source)}")


def _data(resource: str, ref: dict[str, Any], find: Callable[[str, str], Object | None]) -> dict[str, str]:
    obj = find(resource, ref["name"])
    if obj is None:
        if ref.get("optional"):
            return {}
        raise _config_error(f'{resource[:-1]} "{ref["name"]}" not found')
    return decoded(resource, obj)


def decoded(resource: str, obj: Object) -> dict[str, str]:
    """Return the data of a config map or a secret as text."""
    if resource == "configmaps":
        return dict(obj.get("data") or {})
    return {key: base64.b64decode(value).decode(errors="replace") for key, value in (obj.get("data") or {}).items()}


def field(pod: Object, path: str) -> str:
    """Return the text of a pod's field, as the downward API gives it.

    :raises ContainerError: CreateContainerConfigError: there is no such field.
    """
    keyed = _KEYED.fullmatch(path)
    if keyed:
        return str((lookup(pod, f"metadata.{keyed[1]}") or {}).get(keyed[2], ""))
    if path in ("metadata.labels", "metadata.annotations"):
        pairs = lookup(pod, path) or {}
        return "\n".join(f'{key}="{value}"' for key, value in sorted(pairs.items()))
    if path == "status.podIPs":
        return ",".join(item["ip"] for item in lookup(pod, path) or ())
    value = lookup(pod, path)
    if path.partition(".")[0] not in ("metadata", "spec", "status") or isinstance(value, (dict, list)):
        raise _config_error(f"unsupported fieldPath: {path}")
    return "" if value is None else str(value)


def _config_error(text: str) -> ContainerError:
    return ContainerError(text, reason="CreateContainerConfigError")

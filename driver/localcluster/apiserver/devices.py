"""Strategies of resource.k8s.io: defaults, dropped fields, validation. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driver.localcluster.apiserver import dropping
from driver.localcluster.apiserver.strategy import Strategy
from driver.localcluster.apiserver.validation.claims import (
    claim_errors,
    claim_status_errors,
    class_errors,
    template_errors,
)
from driver.localcluster.apiserver.validation.slices import slice_errors

if TYPE_CHECKING:
    from driver.localcluster.apiserver.objects import Object
    from driver.localcluster.apiserver.strategy import Rules


def _spec(obj: Object | None) -> Object:
    found = (obj or {}).get("spec")
    return found if isinstance(found, dict) else {}


def _prepare_slice(obj: Object, old: Object | None, rules: Rules) -> None:
    spec = obj.setdefault("spec", {})
    dropping.drop_from_slice(spec, _spec(old), rules.features)
    for device in spec.get("devices") or ():
        for taint in device.get("taints") or ():
            taint.setdefault("timeAdded", rules.now)


def _default_claim(spec: Object) -> None:
    for request in (spec.get("devices") or {}).get("requests") or ():
        for asked in [request["exactly"]] if request.get("exactly") else request.get("firstAvailable") or ():
            asked.setdefault("allocationMode", "ExactCount")
            if asked["allocationMode"] == "ExactCount":
                asked.setdefault("count", 1)
            for toleration in asked.get("tolerations") or ():
                toleration.setdefault("operator", "Equal")


def _prepare_claim(obj: Object, old: Object | None, rules: Rules) -> None:
    spec = obj.setdefault("spec", {})
    dropping.drop_from_claim(spec, _spec(old), rules.features)
    _default_claim(spec)
    status = obj.get("status")
    if isinstance(status, dict):
        dropping.drop_from_claim_status(status, (old or {}).get("status") or {}, rules.features)


def _prepare_template(obj: Object, old: Object | None, rules: Rules) -> None:
    spec = obj.setdefault("spec", {}).setdefault("spec", {})
    dropping.drop_from_claim(spec, _spec(_spec(old)), rules.features)
    _default_claim(spec)


def _prepare_class(obj: Object, old: Object | None, rules: Rules) -> None:
    dropping.drop_from_class(obj.setdefault("spec", {}), _spec(old), rules.features)


SLICE = Strategy(prepare=_prepare_slice, validate=slice_errors)
CLAIM = Strategy(prepare=_prepare_claim, validate=claim_errors, validate_status=claim_status_errors)
TEMPLATE = Strategy(prepare=_prepare_template, validate=template_errors)
CLASS = Strategy(prepare=_prepare_class, validate=class_errors)

"""Writes what was picked for a claim as the content of `status.allocation`. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from driver.localcluster.scheduler import nodes
from driver.localcluster.scheduler.celvalues import show

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from driver.localcluster.scheduler.requests import Claim
    from driver.localcluster.scheduler.usage import Pick

    Object = Mapping[str, Any]


def result_of(
    claim: Claim, picks: Sequence[Pick], classes: Mapping[str, Object], node: Object, new_id: Callable[[], str]
) -> dict[str, Any]:
    """Return an allocation: results in the order of the picks, class configs before claim configs, the nodes."""
    devices: dict[str, Any] = {"results": [_result(pick, new_id) for pick in picks]}
    if config := [*_class_config(picks, classes), *_claim_config(claim, picks)]:
        devices["config"] = config
    allocation: dict[str, Any] = {"devices": devices}
    if selector := _node_selector(picks, node):
        allocation["nodeSelector"] = selector
    return allocation


def _result(pick: Pick, new_id: Callable[[], str]) -> dict[str, Any]:
    driver, pool, device = pick.device.id
    result: dict[str, Any] = {"request": pick.ask.name, "driver": driver, "pool": pool, "device": device}
    if pick.ask.admin:
        result["adminAccess"] = True
    if pick.ask.tolerations:
        result["tolerations"] = [dict(toleration) for toleration in pick.ask.tolerations]
    if pick.device.multiple:
        result["shareID"] = new_id()
    if pick.consumed:
        names = pick.device.capacity
        result["consumedCapacity"] = {names[name].name: show(taken) for name, taken in pick.consumed.items()}
    return result


def _class_config(picks: Iterable[Pick], classes: Mapping[str, Object]) -> list[dict[str, Any]]:
    asks = {pick.ask.name: pick.ask for pick in picks}
    return [
        {"source": "FromClass", "requests": [name], **config}
        for name, ask in asks.items()
        for config in (classes[ask.class_name].get("spec") or {}).get("config") or ()
    ]


def _claim_config(claim: Claim, picks: Iterable[Pick]) -> list[dict[str, Any]]:
    """Return the claim's configs, but those that are only for alternatives which were not chosen."""
    chosen = {pick.ask.name for pick in picks}
    chosen |= {name.partition("/")[0] for name in chosen}
    return [
        {"source": "FromClaim", **config}
        for config in claim.config
        if not config.get("requests") or chosen & set(config["requests"])
    ]


def _node_selector(picks: Iterable[Pick], node: Object) -> dict[str, Any] | None:
    """Return where the devices can be used: this node if one is local, else where all of them can be, or anywhere."""
    expressions: list[Any] = []
    fields: list[Any] = []
    for pick in picks:
        where = pick.device.where
        if where.get("nodeName"):
            local = {"key": "metadata.name", "operator": "In", "values": [nodes.name_of(node)]}
            return {"nodeSelectorTerms": [{"matchFields": [local]}]}
        term: Object = next(iter((where.get("nodeSelector") or {}).get("nodeSelectorTerms") or ()), {})
        expressions += [item for item in term.get("matchExpressions") or () if item not in expressions]
        fields += [item for item in term.get("matchFields") or () if item not in fields]
    both = {"matchExpressions": expressions, "matchFields": fields}
    filled = {key: value for key, value in both.items() if value}
    return {"nodeSelectorTerms": [filled]} if filled else None

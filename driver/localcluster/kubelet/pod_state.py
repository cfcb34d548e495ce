"""What the kubelet knows of a pod's containers, and the pod status that follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from driver.model.wording import timestamp

if TYPE_CHECKING:
    from driver.localcluster.apiserver.objects import Object
    from driver.localcluster.containers.process import Container

Role = Literal["init", "sidecar", "main"]
FINAL = ("Succeeded", "Failed")
NODE_IP = "127.0.0.1"  # containers share the host's network


@dataclass(slots=True, kw_only=True)
class ContainerState:
    """One container of a pod: as its spec wants it, and how it stands."""

    spec: dict[str, Any]
    role: Role
    waiting: tuple[str, str] = ("ContainerCreating", "")
    """Reason and message while it neither runs nor has ended."""
    current: Container | None = None
    terminated: dict[str, Any] | None = None
    last: dict[str, Any] | None = None
    """How it ended the time before."""
    restarts: int = 0
    started: bool = False
    ready: bool = False
    done: bool = False
    """It has ended and will not be started again."""

    @property
    def name(self) -> str:
        """The container's name."""
        return str(self.spec["name"])

    @property
    def succeeded(self) -> bool:
        """Say whether it has ended well, for good."""
        return self.done and self.terminated is not None and self.terminated["exitCode"] == 0


def new_states(pod: Object) -> dict[str, ContainerState]:
    """Return the states of all containers before anything has happened, init containers first."""
    spec = pod["spec"]
    states = {}
    for container in spec.get("initContainers") or ():
        role: Role = "sidecar" if container.get("restartPolicy") == "Always" else "init"
        states[container["name"]] = ContainerState(spec=container, role=role, waiting=("PodInitializing", ""))
    for container in spec["containers"]:
        waiting = ("PodInitializing" if spec.get("initContainers") else "ContainerCreating", "")
        states[container["name"]] = ContainerState(spec=container, role="main", waiting=waiting)
    return states


def phase(states: dict[str, ContainerState]) -> str:
    """Return Pending, Running, Succeeded or Failed."""
    init = [state for state in states.values() if state.role == "init"]
    main = [state for state in states.values() if state.role == "main"]
    if any(state.done and not state.succeeded for state in init):
        return "Failed"
    if not all(state.succeeded for state in init):
        return "Pending"
    if all(state.done for state in main):
        return "Succeeded" if all(state.succeeded for state in main) else "Failed"
    if any(state.current is not None or state.terminated is not None or state.last is not None for state in main):
        return "Running"
    return "Pending"


def status(
    pod: Object, states: dict[str, ContainerState], health: dict[str, list[Any]], now: str, *, released: bool
) -> dict[str, Any]:
    """Return the pod's status: what others wrote into it stays, what the kubelet knows is brought up to date.

    `health` is the allocatedResourcesStatus by container. Until the pod's claims are `released` its phase is not a
    final one: with that they would be given to others. A final phase stays.
    """
    old = pod.get("status") or {}
    new_phase = phase(states)
    if (new_phase in FINAL and not released) or old.get("phase") in FINAL:
        new_phase = old.get("phase") or "Pending"
    shown = {
        role: [
            _container_status(state, health.get(state.name))
            for state in states.values()
            if (state.role == "main") is (role == "main")
        ]
        for role in ("main", "init")
    }
    result = {
        **old,
        "phase": new_phase,
        "hostIP": NODE_IP,
        "hostIPs": [{"ip": NODE_IP}],
        "podIP": NODE_IP,
        "podIPs": [{"ip": NODE_IP}],
        "startTime": old.get("startTime", now),
        "conditions": _conditions(old, states, new_phase, now),
        "containerStatuses": shown["main"],
    }
    if shown["init"]:
        result["initContainerStatuses"] = shown["init"]
    return result


def terminated(container: Container) -> dict[str, Any]:
    """Return the terminated state of a container that has ended."""
    end = container.exit
    assert end is not None  # noqa: S101 (the caller waited for it)
    state: dict[str, Any] = {
        "exitCode": end.code,
        "reason": "Completed" if end.code == 0 else "Error",
        "startedAt": timestamp(container.started),
        "finishedAt": timestamp(end.finished),
        "containerID": f"localcluster://{container.id}",
    }
    return state


def _container_status(state: ContainerState, health: list[Any] | None) -> dict[str, Any]:
    result: dict[str, Any] = {
        "name": state.name,
        "image": state.spec.get("image", ""),
        "imageID": state.spec.get("image", ""),
        "restartCount": state.restarts,
        "ready": state.ready or (state.role == "init" and state.succeeded),
        "started": state.started,
        "state": _state(state),
        "lastState": {"terminated": state.last} if state.last else {},
    }
    if state.current is not None:
        result["containerID"] = f"localcluster://{state.current.id}"
    elif state.terminated and "containerID" in state.terminated:
        result["containerID"] = state.terminated["containerID"]
    if health:
        result["allocatedResourcesStatus"] = health
    return result


def _state(state: ContainerState) -> dict[str, Any]:
    if state.current is not None:
        return {"running": {"startedAt": timestamp(state.current.started)}}
    if state.terminated is not None:
        return {"terminated": state.terminated}
    reason, message = state.waiting
    return {"waiting": {"reason": reason, **({"message": message} if message else {})}}


def _conditions(old: dict[str, Any], states: dict[str, ContainerState], new_phase: str, now: str) -> list[Any]:
    init_done = all(state.succeeded for state in states.values() if state.role == "init")
    serving = [state for state in states.values() if state.role != "init"]
    unready = [state.name for state in serving if not state.ready]
    ready, why = not unready, ("ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]")
    if new_phase == "Succeeded":
        why = ("PodCompleted", "")
    any_started = any(state.current or state.terminated or state.last for state in states.values())
    wanted = {
        "PodReadyToStartContainers": (any_started and new_phase not in ("Succeeded", "Failed"), ("", "")),
        "Initialized": (init_done, ("ContainersNotInitialized", "")),
        "Ready": (ready, why),
        "ContainersReady": (ready, why),
    }
    before = {condition["type"]: condition for condition in old.get("conditions") or ()}
    kept = [condition for type_, condition in before.items() if type_ not in wanted]
    return kept + [_condition(before.get(type_), type_, *value, now) for type_, value in wanted.items()]


def _condition(old: dict[str, Any] | None, type_: str, true: bool, why: tuple[str, str], now: str) -> dict[str, Any]:
    new: dict[str, Any] = {"type": type_, "status": "True" if true else "False", "lastProbeTime": None}
    if not true:
        new |= {key: value for key, value in zip(("reason", "message"), why, strict=True) if value}
    changed = old is None or old.get("status") != new["status"]
    new["lastTransitionTime"] = now if old is None or changed else old.get("lastTransitionTime", now)
    return new

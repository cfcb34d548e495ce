"""Names that leave the process: driver, devices, CDI ids, claim UIDs; and the checks on those that come in.

Names from outside are checked here before they become paths. Device names follow the peer's scheme
(`gpu-<minor>`, `gpu-<minor>-mig-<profile>-<profile id>-<placement start>`) and are DNS labels.
"""

from __future__ import annotations

import hashlib
import re
import uuid

from driver.errors import InvalidValueError

DRIVER = "gpu.nvidia.com"
PARAMETERS_API_VERSION = "resource.nvidia.com/v1beta1"
CDI_KIND = "k8s.gpu.nvidia.com/claim"
UNIX_PATH_MAX = 107  # bytes of sockaddr_un.sun_path without its NUL

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_SHARE_LENGTH = 36  # characters of a UUID
_UID = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,127}")


def gpu_name(minor: int | None, gpu_uuid: str) -> str:
    """Name a full GPU: by its minor number, or by its UUID where it has none (WSL)."""
    return f"gpu-{minor}" if minor is not None else to_dns_label(f"gpu-{gpu_uuid.removeprefix('GPU-')}")


def mig_name(parent: str, profile: str, profile_id: int, start: int) -> str:
    """Name a MIG device or partition by its parent, profile (`1g.10gb`), GPU instance profile id and placement."""
    compact = profile.replace(".", "").replace("+", "-")
    return to_dns_label(f"{parent}-mig-{compact}-{profile_id}-{start}")


def to_dns_label(text: str) -> str:
    """Make a DNS label of `text`: lower case, other characters to `-`, cut to 63 with a hash if longer."""
    label = re.sub(r"[^a-z0-9-]", "-", text.lower()).strip("-") or "x"
    if len(label) <= 63:
        return label
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{label[:54].rstrip('-')}-{digest}"


def is_dns_label(text: str) -> bool:
    """Say whether `text` is an RFC 1123 label."""
    return _DNS_LABEL.fullmatch(text) is not None


def is_dns_subdomain(text: str, limit: int = 253) -> bool:
    """Say whether `text` is an RFC 1123 subdomain of at most `limit` characters."""
    return len(text) <= limit and _DNS_SUBDOMAIN.fullmatch(text) is not None


def check_uid(text: str, path: str = "uid") -> str:
    """Return a claim's or pod's UID that is safe as a file name.

    Kubernetes UIDs are opaque, in practice RFC 4122 UUIDs; static pods have a hash.

    :raises InvalidValueError: naming `path`.
    """
    if not _UID.fullmatch(text) or ".." in text:
        raise InvalidValueError(path, text, "a UID has letters, digits, '-', '_' and single '.', at most 128 of them")
    return text


def check_share_id(text: str, path: str = "shareID") -> str:
    """Return a share id (a lower-case UUID).

    :raises InvalidValueError: naming `path`.
    """
    try:
        if str(uuid.UUID(text)) == text:
            return text
    except ValueError:
        pass
    raise InvalidValueError(path, text, "a share id is a UUID in lower case")


def cdi_device(claim_uid: str, device: str, share_id: str | None = None) -> str:
    """Name a device within the claim's CDI file; distinct for two shares of one device."""
    return f"{claim_uid}-{device}" if share_id is None else f"{claim_uid}-{device}-{share_id}"


def split_share(name: str) -> tuple[str, str | None]:
    """Return what `cdi_device` put behind the claim's UID: the device's name, and the share id if there is one."""
    device, dash, share = name[: -_SHARE_LENGTH - 1], name[-_SHARE_LENGTH - 1 : -_SHARE_LENGTH], name[-_SHARE_LENGTH:]
    try:
        return (device, check_share_id(share)) if device and dash == "-" else (name, None)
    except InvalidValueError:
        return name, None


def cdi_id(claim_uid: str, device: str, share_id: str | None = None) -> str:
    """Return the qualified CDI id that the kubelet passes to the container runtime."""
    return f"{CDI_KIND}={cdi_device(claim_uid, device, share_id)}"


def pci_bus_id(raw: str) -> str:
    """Normalize a PCI bus id: lower case, a domain of 0000xxxx loses its four leading zeros (`0000:65:00.0`)."""
    text = raw.strip().lower()
    domain, colon, rest = text.partition(":")
    if colon and len(domain) == 8 and domain.startswith("0000"):
        return f"{domain[4:]}:{rest}"
    return text

"""The embedded cluster's API server: an in-process `Store` and the HTTP side of it.

`Store` is the one place for objects; `ApiServer` serves one over TLS. Nothing here starts pods or allocates devices:
scheduler, controllers and kubelets do that, through the store.
"""

from driver.localcluster.apiserver.errors import StatusError
from driver.localcluster.apiserver.faults import Fault
from driver.localcluster.apiserver.features import Features
from driver.localcluster.apiserver.log_request import LogRequest
from driver.localcluster.apiserver.server import ApiServer
from driver.localcluster.apiserver.store import Store

__all__ = ["ApiServer", "Fault", "Features", "LogRequest", "StatusError", "Store"]

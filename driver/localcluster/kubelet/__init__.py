"""The embedded cluster's kubelet: plugins over Unix sockets, pods as processes, the node's status."""

import os

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # before grpc is imported: plugins come and go, that is no news

"""The kubelet's wire APIs over Unix sockets."""

import os

# gRPC's C core writes lines of its own to standard error, which would come between structured logs. It reads this once,
# when it is loaded: below.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

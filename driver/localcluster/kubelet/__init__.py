"""The embedded cluster's kubelet: plugins over Unix sockets, pods as processes, the node's status."""

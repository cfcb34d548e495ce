"""The kubelet's wire APIs over Unix sockets."""

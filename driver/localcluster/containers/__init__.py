"""Containers of the embedded cluster: CDI as containerd resolves it, processes started as runc starts them."""

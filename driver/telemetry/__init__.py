"""Use of GPUs: told under the names that people's dashboards know, and to `gpu-dra status`."""

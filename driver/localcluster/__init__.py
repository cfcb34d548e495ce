"""An embedded cluster: API server, scheduler, kubelet, containers. An extra, not part of the agent."""

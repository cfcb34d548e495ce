"""What the device-plugin API offers and prefers. Pure; `kubelet.device_plugin` serves it."""

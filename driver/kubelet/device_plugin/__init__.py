"""The legacy device-plugin API, v1beta1: one service per extended resource, registered with the kubelet."""

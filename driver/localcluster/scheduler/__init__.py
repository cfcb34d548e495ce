"""The embedded cluster's scheduler: places pods, allocates the devices of their claims, says why it could not.

`cel`, `devices`, `requests`, `allocator` and what they use are pure; `scheduler` is the loop on the store.
"""

"""The agent of one node: its parts made and wired, and its life as a process."""

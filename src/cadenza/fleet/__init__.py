"""What the processes of one installation know of each other: heartbeats, changes, shared rates and slots."""

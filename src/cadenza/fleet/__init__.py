"""What the processes of one installation know of each other: presence, heartbeats, epochs, shared rates and slots."""

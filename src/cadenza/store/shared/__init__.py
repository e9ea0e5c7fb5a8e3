"""What the processes of a fleet share beside the store: rates and slots, in this process or in Valkey."""

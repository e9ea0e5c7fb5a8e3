"""Search engines behind one protocol. `local` answers from documents on this machine; the others ask a service."""

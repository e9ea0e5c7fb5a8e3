"""The protocols that clients speak: translations of their requests into chats, and of replies into their bytes."""

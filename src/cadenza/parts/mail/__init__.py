"""E-mail: what is written, the queue that sends it, and the SMTP client."""

"""Sends e-mail: the queue, the SMTP client, and the notices of low credit."""

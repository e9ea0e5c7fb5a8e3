"""Replies of upstreams, made from seeds, and the replies that the client of each protocol gets."""

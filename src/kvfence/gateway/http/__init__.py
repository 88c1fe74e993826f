"""HTTP/1.1 on both sides: whole requests in, answers through."""

"""The workers behind the gateway: what is known of each, whether that is still true, and which to choose."""

"""What `benchmarks/gateway.py` measures with: a fake engine, a load client, peers, and readings of /proc."""

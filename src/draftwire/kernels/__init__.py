"""The arithmetic behind one protocol, one folder a device class: cpu, torch, triton; shards."""

"""Where frames come from: DPDK ports, kernel interfaces, capture files."""

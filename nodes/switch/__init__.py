"""The switch node: which kernels the nodes downstream of it run with."""

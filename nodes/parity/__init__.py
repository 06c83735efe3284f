"""Parity: are two results the same, and is a VAE's result on the device the one the CPU computes?

values -> metrics -> verdict -> report, with pictures beside them; `compare` joins these for any two values, `vae` and
its neighbours (`plan`, `estimate`, `watch`, `cpu_copy`, `kernels_used`) produce the two values from one VAE.
"""

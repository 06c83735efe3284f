"""The main job: a video VAE decoded by stock MPS and by MPS with the repaired pad, both against the CPU.

    make demo            or, from tests/:  python -m demo

device      which device this runs on, and in which words results name it
workload    the VAE, its latent, its decode: the same on every device
pads        which constant pads a decode makes, and which of them stock gets wrong
memory      the four memory numbers, over time and at their peaks
phase       one decode in a process of its own: stock or repaired
compare     PSNR, and the checks that decide the exit status
report      what is printed and written as JSON
picture     what is drawn
"""

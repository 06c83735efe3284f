"""Memory: what each node of a prompt took, in four numbers that never stand for one another.

source (where the numbers come from) -> meter (when they are read) -> session (whose they are) -> report, with table,
chart and advice beside it -> deliver (at the prompt's end).
"""

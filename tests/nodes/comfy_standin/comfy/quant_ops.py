"""The formats of quantised layers, of which ComfyUI has more."""
QUANT_ALGOS = {"float8_e4m3fn": {}, "float8_e5m2": {}}

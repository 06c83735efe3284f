"""How many weights the usual models have: python model_sizes.py COMFYUI_DIR prints JSON, {name: weights}.

ComfyUI's own classes with the configurations that the models were published with, built without memory.
"""
import json
import os
import sys


def models():
    import comfy.ops
    import torch
    from comfy.ldm.flux.model import Flux
    from comfy.ldm.lumina.model import NextDiT
    from comfy.ldm.qwen_image.model import QwenImageTransformer2DModel
    from comfy.ldm.wan.model import WanModel

    common = {"device": "meta", "dtype": torch.float32, "operations": comfy.ops.disable_weight_init}
    yield "Flux.1 dev", Flux(
        image_model="flux", in_channels=16, out_channels=16, vec_in_dim=768, context_in_dim=4096, hidden_size=3072,
        mlp_ratio=4.0, num_heads=24, depth=19, depth_single_blocks=38, axes_dim=[16, 56, 56], theta=10000, patch_size=2,
        qkv_bias=True, guidance_embed=True, txt_ids_dims=[], **common)  # fmt: skip
    yield "Wan 2.1 14B", WanModel(model_type="t2v", dim=5120, ffn_dim=13824, num_heads=40, num_layers=40, in_dim=16,
                                  out_dim=16, text_dim=4096, freq_dim=256, **common)  # fmt: skip
    yield "Qwen-Image", QwenImageTransformer2DModel(
        patch_size=2, in_channels=64, out_channels=16, num_layers=60, attention_head_dim=128, num_attention_heads=24,
        joint_attention_dim=3584, pooled_projection_dim=768, **common)  # fmt: skip
    yield "Z-Image", NextDiT(
        patch_size=2, in_channels=16, dim=3840, n_layers=30, n_refiner_layers=2, n_heads=30, n_kv_heads=30,
        ffn_dim_multiplier=8 / 3, qk_norm=True, cap_feat_dim=2560, axes_dims=[32, 48, 48], axes_lens=[1536, 512, 512],
        rope_theta=256.0, z_image_modulation=True, time_scale=1000.0, pad_tokens_multiple=32, **common)  # fmt: skip


def main():
    print(json.dumps({name: sum(weight.numel() for weight in model.parameters()) for name, model in models()}))


if __name__ == "__main__":
    comfyui = os.path.abspath(sys.argv[1])
    sys.path[0], sys.argv = comfyui, ["main.py", "--cpu"]
    os.chdir(comfyui)
    import comfy.options

    comfy.options.enable_args_parsing()
    main()

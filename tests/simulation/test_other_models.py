"""Models that others wrote run on the simulated card at full size, from their configs, with AMP and AdamW."""

import pytest
import torch
import transformers

from helpers import MiB, open_card

MODELS = {
    "ViT-B/16": (transformers.ViTModel, transformers.ViTConfig, {}),
    "T5-large's encoder": (transformers.T5EncoderModel, transformers.T5Config, {
        "d_model": 1024, "d_kv": 64, "d_ff": 4096, "num_layers": 24, "num_heads": 16}),
    "BERT-base": (transformers.BertForMaskedLM, transformers.BertConfig, {}),
    "GPT-2": (transformers.GPT2LMHeadModel, transformers.GPT2Config, {}),
    "a 1B Llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig, {
        "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": True}),
}


@pytest.mark.parametrize("name", MODELS)
def test_trains_at_full_size_with_the_parameters_the_library_reports(name):
    model_class, config_class, options = MODELS[name]
    config = config_class(**options)
    reported = {}

    def train(device, batch_size):
        with device:
            model = model_class(config)
        model.train()
        reported["count"] = model.num_parameters()  # tied weights once
        optimizer = torch.optim.AdamW(model.parameters())
        if name.startswith("ViT"):
            batch = {"pixel_values": torch.randn(batch_size, 3, 224, 224, device=device)}
        else:
            batch = {"input_ids": torch.zeros(batch_size, 256, dtype=torch.long, device=device)}
        if "LM" in model_class.__name__:
            batch["labels"] = batch["input_ids"]
        for _ in range(2):
            with torch.autocast(device.type, dtype=torch.bfloat16):
                output = model(**batch)
                loss = output.loss if "labels" in batch else output.last_hidden_state.float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    run = open_card("A100 40GB", kind="simulated").run(train, 4)
    assert run.fits and run.left_behind == 0
    unused = [name for name in run.without_gradient if "pooler" not in name]  # ViT's pooler is not in this loss
    assert unused == []
    held = [record for record in run.live_at_peak if record.role == "parameters"]
    floats = sum(torch.Size(record.shape).numel() for record in held if record.dtype == "float32")
    assert floats == pytest.approx(reported["count"], rel=1e-4)  # and a few buffers
    assert run.roles_at_peak["parameters"] == pytest.approx(4 * reported["count"], abs=8 * MiB)
    if not run.without_gradient:  # 8 bytes each, and the unused ends of blocks
        state = run.roles_at_peak["optimizer state"]
        assert 8 * reported["count"] <= state < 8 * reported["count"] + 2 * MiB * 2 * len(held)

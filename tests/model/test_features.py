"""From pages to features: real pictures and text through frozen encoders, at both sizes, without a connection."""

import os
import subprocess
import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from helpers import features, open_card
from helpers.features import encode_pages, image_tensor, load_encoders, load_pages, render_page
from helpers.model import FusionConfig, FusionTransformer


@pytest.fixture(scope="module")
def encoders():
    return load_encoders()


def run_python(code, **environment):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False,
                          env={**os.environ, "HF_HUB_OFFLINE": "1", **environment})


def test_five_pages_of_text_fit_on_their_pictures():
    pages = load_pages()
    assert len(pages) == 5
    for page in pages:
        assert 120 <= len(page.split()) <= 200
        picture = render_page(page)
        assert (picture.size, picture.mode) == ((224, 224), "RGB")
        pixels = image_tensor(picture)
        assert pixels.shape == (3, 224, 224) and pixels.min() < -0.3 and pixels.max() == 1
        border = torch.cat([pixels[:, -6:].flatten(), pixels[:, :, -6:].flatten()])
        assert border.min() > 0.9  # nothing is cut off at the bottom or on the right


def test_a_picture_keeps_its_pixels():
    from PIL import Image

    picture = Image.new("RGB", (2, 1), (255, 0, 0))
    picture.putpixel((1, 0), (0, 255, 255))
    assert image_tensor(picture).tolist() == [[[1, -1]], [[-1, 1]], [[-1, 1]]]


def test_small_encoders_give_the_features_that_the_model_takes(encoders):
    pages = load_pages()
    batch = encode_pages(encoders, [pages[:2], pages[2:4]], seq_len=64)
    assert {name: (tuple(value.shape), value.dtype) for name, value in batch.items()} == {
        "vit": ((2, 2, 768), torch.float32), "t5": ((2, 2, 64, 1024), torch.float32)}
    assert not any(value.requires_grad for value in batch.values())
    assert not torch.allclose(batch["vit"][0, 0], batch["vit"][0, 1], atol=1e-3)  # another picture, another feature
    again = encode_pages(encoders, [pages[2:4]], seq_len=64)
    torch.testing.assert_close(again["vit"][0], batch["vit"][1], rtol=1e-4, atol=1e-4)
    config = FusionConfig(pages=2, seq_len=64, depth=1, answers=4)
    assert FusionTransformer(config)(**batch).logits.shape == (2, 4)


def test_encoders_are_frozen_the_same_each_time_and_leave_the_random_state(encoders):
    state = torch.get_rng_state()
    again = load_encoders()
    assert torch.equal(state, torch.get_rng_state())
    for ours, theirs in ((encoders.vit, again.vit), (encoders.t5, again.t5)):
        assert not ours.training and not any(p.requires_grad for p in ours.parameters())
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.equal(one, other)


def count_and_encode(device, batch_size):
    encoders = load_encoders("full", device)
    counts.append([sum(p.numel() for p in model.parameters()) for model in (encoders.vit, encoders.t5)])
    batch = encode_pages(encoders, [load_pages()] * batch_size)
    shapes.append({name: (tuple(value.shape), value.device.type) for name, value in batch.items()})


counts, shapes = [], []


def test_full_size_on_the_simulated_card():
    run = open_card("RTX 3090", kind="simulated").run(count_and_encode, 2, expect_gradients=False)
    assert run.fits and counts.pop() == [85_798_656, 334_939_648]  # ViT-B/16 without pooler, encoder of T5-large
    assert shapes.pop() == {"vit": ((2, 5, 768), "sim"), "t5": ((2, 5, 512, 1024), "sim")}
    assert run.roles_at_peak["parameters"] >= 4 * (85_798_656 + 334_939_648)


def test_full_size_on_fake_tensors():
    with FakeTensorMode():
        count_and_encode("cpu", 1)
    assert counts.pop() == [85_798_656, 334_939_648]
    assert shapes.pop()["t5"] == ((1, 5, 512, 1024), "cpu")


def test_trained_weights_are_loaded_quietly(encoders, tmp_path, monkeypatch):
    from transformers import ViTModel

    vit = ViTModel(encoders.vit.config)  # with the pooler that published weights have and we do not use
    vit.save_pretrained(tmp_path / "vit")
    encoders.t5.save_pretrained(tmp_path / "t5")
    encoders.tokenizer.save_pretrained(tmp_path / "t5")
    names = {"PRETRAINED_VIT": str(tmp_path / "vit"), "PRETRAINED_T5": str(tmp_path / "t5")}
    # In a process of its own: transformers' log goes to the first stderr that it saw, past this test's capture.
    result = run_python(f"from helpers import features as f; vars(f).update({names}); f.load_encoders('full', "
                        "pretrained=True)")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    for name, path in names.items():
        monkeypatch.setattr(features, name, path)
    loaded = load_encoders("full", pretrained=True)
    assert torch.equal(loaded.vit.embeddings.cls_token, vit.embeddings.cls_token)
    assert torch.equal(loaded.t5.shared.weight, encoders.t5.shared.weight)
    assert encode_pages(loaded, [["one page"]], seq_len=16)["t5"].shape == (1, 1, 16, 1024)


def test_without_a_connection_trained_weights_are_one_sentence(tmp_path):
    result = run_python("from helpers.features import load_encoders; load_encoders('full', pretrained=True)",
                        HF_HOME=str(tmp_path))
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("ConnectionError: The weights of google/vit-base") and "leave out pretrained=True" in last
    assert result.stderr.count("Traceback") == 1


def test_importing_helpers_does_not_import_transformers_and_encoding_says_nothing():
    result = run_python("import sys, helpers.features as f; assert not {'transformers', 'PIL'} & set(sys.modules); "
                        "f.encode_pages(f.load_encoders(), [['one page']], seq_len=8)")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize(("call", "message"), [
    (lambda encoders: load_encoders("large"), "Unknown size 'large'. Use one of: small, full."),
    (lambda encoders: load_encoders("small", pretrained=True), "use size='full' with pretrained=True"),
    (lambda encoders: encode_pages(encoders, []), "at least one; got no documents"),
    (lambda encoders: encode_pages(encoders, [["a"], ["a", "b"]]), r"same number of pages, at least one; got \[1, 2\]"),
    (lambda encoders: encode_pages(encoders, [[]]), "at least one"),
    (lambda encoders: encode_pages(encoders, load_pages()), "A document is a list of pages"),
    (lambda encoders: encode_pages(encoders, [["a"]], seq_len=0), "seq_len must be at least 1, got 0.")])
def test_bad_input_is_one_sentence(encoders, call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call(encoders)

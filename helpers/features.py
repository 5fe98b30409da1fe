"""From pages to features: a page as an image through a ViT, its text through a T5 encoder, both frozen.

The pages are a short text that ships with the project. Encoders are built from their configurations, without a
download: shapes and memory are right, the features are those of an untrained network. `pretrained=True` loads trained
weights.
"""

import contextlib
import dataclasses
import pathlib
import textwrap
import typing

import torch

from helpers.model import check_whole_number

if typing.TYPE_CHECKING:
    from PIL import Image

PAGES = pathlib.Path(__file__).parent / "pages"
IMAGE_SIZE = 224  # pixels each way, what ViT-B/16 reads: 14 x 14 patches of 16

# Both sizes give features of the same width: 768 and 1024. "full" is ViT-B/16 and the encoder of T5-large.
VIT = {
    "small": {"num_hidden_layers": 2, "intermediate_size": 768},
    "full": {"num_hidden_layers": 12, "intermediate_size": 3072},
}
T5 = {
    "small": {"num_layers": 1, "d_ff": 1024, "vocab_size": 384},  # 384: ByT5's bytes and special tokens
    "full": {"num_layers": 24, "d_ff": 4096, "vocab_size": 32128},
}
PRETRAINED_VIT, PRETRAINED_T5 = "google/vit-base-patch16-224-in21k", "google-t5/t5-large"


def load_pages() -> list[str]:
    """The text of the five pages, first line a title."""
    return [path.read_text(encoding="utf-8") for path in sorted(PAGES.glob("*.txt"))]


def render_page(text: str, size: int = IMAGE_SIZE) -> "Image.Image":
    """The page as a square RGB picture of `size` pixels: black text on white, drawn large and scaled down.

    Text that does not fit on the page is cut off, as on paper.
    """
    from PIL import Image, ImageDraw, ImageFont

    large = 4 * IMAGE_SIZE
    image = Image.new("RGB", (large, large), "white")
    lines = [line for paragraph in text.splitlines() for line in textwrap.wrap(paragraph, 58) or [""]]
    font = ImageFont.load_default(size=28)
    ImageDraw.Draw(image).multiline_text((40, 36), "\n".join(lines), fill="black", font=font, spacing=6)
    return image.resize((size, size), Image.Resampling.LANCZOS)


@dataclasses.dataclass(frozen=True)
class Encoders:
    """A ViT and a T5 encoder, frozen and in evaluation mode, and the tokenizer that goes with the T5."""

    vit: torch.nn.Module
    t5: torch.nn.Module
    tokenizer: typing.Any


def load_encoders(size: str = "small", device="cpu", pretrained: bool = False) -> Encoders:
    """Frozen encoders on `device`. size: "small" runs on a CPU in seconds, "full" is ViT-B/16 and T5-large's encoder.

    pretrained: trained weights of the full size from the Hugging Face hub (about 3 GB the first time), with T5's own
    tokenizer; otherwise the same untrained weights each time, and bytes as tokens. Raises ValueError for an unknown
    size, ConnectionError where the weights are neither on this machine nor within reach.
    """
    if size not in VIT:
        raise ValueError(f"Unknown size {size!r}. Use one of: {', '.join(VIT)}.")
    if pretrained and size != "full":
        raise ValueError("Trained weights exist for the full size only: use size='full' with pretrained=True.")
    vit, t5, tokenizer = download_encoders() if pretrained else build_encoders(size, device)
    for model in (vit, t5):
        model.requires_grad_(False).eval()
        if model.device.type != torch.device(device).type:  # FakeTensor parameters are there already, and cannot move
            model.to(device)
    return Encoders(vit, t5, tokenizer)


def build_encoders(size: str, device="cpu"):
    """ViT, T5 encoder and tokenizer from their configurations; leaves PyTorch's random state as it was.

    Weights are drawn on the CPU, the same for every device. On FakeTensors there is nothing to draw, and ViT's
    initialiser looks at values that do not exist: there the weights are only shapes, made on `device`.
    """
    from transformers import ByT5Tokenizer, T5Config, T5EncoderModel, ViTConfig, ViTModel
    from transformers.initialization import no_init_weights

    vit_config = ViTConfig(hidden_size=768, num_attention_heads=12, image_size=IMAGE_SIZE, patch_size=16, **VIT[size])
    t5_config = T5Config(d_model=1024, d_kv=64, num_heads=16, **T5[size])
    fake = type(torch.empty(0)) is not torch.Tensor
    with torch.random.fork_rng(devices=[], device_type="cpu"), torch.device(device if fake else "cpu"):
        torch.default_generator.manual_seed(0)
        with no_init_weights() if fake else contextlib.nullcontext():
            vit, t5 = ViTModel(vit_config, add_pooling_layer=False), T5EncoderModel(t5_config)
    t5.tie_weights()  # one embedding under two names; no_init_weights leaves that out
    return vit, t5, ByT5Tokenizer()


def download_encoders():
    """Trained ViT-B/16, T5-large's encoder and T5's tokenizer, from the hub or its cache on this machine."""
    from huggingface_hub.utils import disable_progress_bars
    from transformers import AutoTokenizer, T5EncoderModel, ViTModel
    from transformers.utils import logging

    disable_progress_bars()
    logging.disable_progress_bar()
    try:
        vit, t5 = ViTModel.from_pretrained(PRETRAINED_VIT), T5EncoderModel.from_pretrained(PRETRAINED_T5)
        tokenizer = AutoTokenizer.from_pretrained(PRETRAINED_T5)
    except OSError:
        raise ConnectionError(f"The weights of {PRETRAINED_VIT} and {PRETRAINED_T5} are not on this machine and could "
                              "not be downloaded: check the connection, or leave out pretrained=True.") from None
    vit.pooler = None  # in the weights but not used; a ViT made without one reports it as unexpected
    return vit, t5, tokenizer


@torch.no_grad()
def encode_pages(encoders: Encoders, documents: list[list[str]], seq_len: int = 512) -> dict[str, torch.Tensor]:
    """Features of documents with the same number of pages: {"vit": [B, pages, 768], "t5": [B, pages, seq_len, 1024]}.

    A page's image gives one feature, that of ViT's class token; its text gives one for each token, cut or padded to
    `seq_len`. Raises ValueError for documents without pages or of different lengths, TypeError for bare text.
    """
    check_whole_number("seq_len", seq_len)
    if any(isinstance(document, str) for document in documents):
        raise TypeError("A document is a list of pages: pass a list of documents, [load_pages()], not a list of texts.")
    lengths = sorted({len(document) for document in documents})
    if len(lengths) != 1 or 0 in lengths:
        given = lengths or "no documents"
        raise ValueError(f"Every document needs the same number of pages, at least one; got {given}.")
    pages, device = [page for document in documents for page in document], encoders.vit.device
    images = torch.stack([image_tensor(render_page(page)) for page in pages]).to(device)  # (N, 3, 224, 224)
    vit = encoders.vit(images).last_hidden_state[:, 0]  # (N, 768)
    tokens = encoders.tokenizer(pages, padding="max_length", truncation=True, max_length=seq_len)
    ids = torch.tensor(tokens["input_ids"]).to(device)  # (N, seq_len)
    mask = torch.tensor(tokens["attention_mask"]).to(device)
    t5 = encoders.t5(input_ids=ids, attention_mask=mask).last_hidden_state  # (N, seq_len, 1024)
    return {"vit": vit.unflatten(0, (-1, lengths[0])), "t5": t5.unflatten(0, (-1, lengths[0]))}


def image_tensor(image: "Image.Image") -> torch.Tensor:
    """A picture as ViT reads it: [3, height, width] of float32 between -1 and 1."""
    width, height = image.size
    pixels = torch.tensor(list(image.tobytes()), dtype=torch.float32)
    return pixels.view(height, width, 3).permute(2, 0, 1) / 127.5 - 1


def switch_on_checkpointing(model, *args, **options) -> None:
    """`model.activation_checkpointing_enable(...)`, a Hugging Face model's checkpoints, under the name that it has.

    Transformers 5.17 knows it as gradient_checkpointing_enable only; 5.24 has both, and warns of that one.
    """
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable(*args, **options)

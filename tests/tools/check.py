"""What a reader checks before a workshop: which card, which versions, and whether the smallest training run works."""

import importlib.metadata
import platform
import sys
import time

from helpers import FusionConfig, FusionTransformer, make_batch, open_card, torch_private

PACKAGES = ("torch", "transformers", "jupyterlab", "ipywidgets", "matplotlib")
GiB = 2**30


def versions() -> str:
    found = [f"Python {platform.python_version()}"]
    for package in PACKAGES:
        try:
            found.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{package} MISSING")
    return ", ".join(found)


def smallest_run(device, batch_size):
    import torch

    config = FusionConfig.tiny()
    model = FusionTransformer(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = make_batch(config, batch_size, device)
    for _ in range(2):
        loss, _ = model(**batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def main() -> int:
    print("versions:", versions())
    missing = torch_private.first_missing()
    if missing:
        print(f"inside:   {missing}")
        return 1
    card = open_card()
    kind = "simulated: no GPU is used" if card.is_simulated else "a CUDA GPU of this machine"
    print(f"card:     {card.name} ({kind}), {card.capacity / GiB:.2f} GiB for PyTorch")
    start = time.monotonic()
    run = card.run(smallest_run, batch_size=1)
    print(f"run:      {run}")
    if not run.fits:
        print("The smallest run does not fit: is another program using this GPU? `nvidia-smi` lists them.")
        return 1
    print(f"ready:    yes, after {time.monotonic() - start:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())

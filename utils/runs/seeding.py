"""Random streams: every use of randomness has its own generator, named after its purpose."""

import hashlib

import torch


def generator(seed: int, *stream, device="cpu") -> torch.Generator:
    """Return the generator of the stream named by `stream`, e.g. ("data_order", member, epoch).

    It depends only on its arguments, so a resumed run, or the same work in another order, draws
    the same numbers. PyTorch's CPU generator uses 32 bits of its seed: among n streams the
    probability that two coincide is about n² / 2³³.
    """
    digest = hashlib.sha256(repr((seed, *stream)).encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:8], "little") >> 1)

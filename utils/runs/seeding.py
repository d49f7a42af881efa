"""Random streams: every use of chance gets a generator of its own, named after what it is for."""

import hashlib

import torch


def generator(seed: int, *stream, device="cpu") -> torch.Generator:
    """The generator of the stream named by `stream`, e.g. ("data_order", member, epoch).

    It depends on nothing but its arguments, so that a resumed run or another order of work draws
    the same numbers. PyTorch's CPU generator uses 32 bits of its seed, so that two of n streams
    coincide by chance with probability n² / 2³³.
    """
    digest = hashlib.sha256(repr((seed, *stream)).encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:8], "little") >> 1)

"""Random streams: every use of chance gets a generator of its own, named after what it is for."""

import hashlib

import torch


def generator(seed: int, *stream, device="cpu") -> torch.Generator:
    """The generator of the stream named by `stream`, e.g. ("data_order", member, epoch).

    It depends on nothing but its arguments, so that a resumed run or another order of work draws
    the same numbers, and streams with different names are independent.
    """
    digest = hashlib.sha256(repr((seed, *stream)).encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:8], "little") >> 1)

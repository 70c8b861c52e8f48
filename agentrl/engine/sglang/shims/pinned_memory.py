"""Pinned memory on a machine without an accelerator: ordinary memory.

SGLang's adapters ask for pinned memory whatever the device is, which torch refuses without an
accelerator. Pinning only makes copies to a GPU quicker, so leaving it out changes no number.
"""

import functools

import torch
from torch.utils import _device

# It caches torch's own constructors at its first call; after ours it would cache those, and
# `with torch.device("meta")` would do nothing.
_device._device_constructors()


def _ignore_pin_memory(make):
    @functools.wraps(make)
    def made(*args, pin_memory=False, **kwargs):
        return make(*args, **kwargs)

    return made


torch.Tensor.pin_memory = lambda self, *args, **kwargs: self
for _name in ("empty", "zeros", "ones", "full", "tensor", "arange", "empty_like", "zeros_like"):
    setattr(torch, _name, _ignore_pin_memory(getattr(torch, _name)))

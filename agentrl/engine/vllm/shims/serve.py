"""Starts vLLM's server; each process that it spawns imports this file again.

On a CPU its attention knows some sizes of heads only. Others are padded with zeros, which changes
no score and no sum.
"""

import sys


def _pad_heads():
    from torch.nn.functional import pad
    from vllm.model_executor.layers.attention.attention import Attention
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    make, forward = Attention.__init__, Attention.forward

    def make_padded(self, num_heads, head_size, *args, **kwargs):
        sizes = CPUAttentionBackend.get_supported_head_sizes()
        make(self, num_heads, min(s for s in sizes if s >= head_size), *args, **kwargs)
        self.own_size = head_size

    def forward_padded(self, query, key, value, *args, **kwargs):
        own, missing = self.own_size, self.head_size - self.own_size
        if not missing:
            return forward(self, query, key, value, *args, **kwargs)
        three = (x.view(len(x), -1, own) for x in (query, key, value))
        out = forward(self, *(pad(x, (0, missing)).flatten(1) for x in three))
        return out.view(len(out), -1, self.head_size)[..., :own].flatten(1)

    Attention.__init__, Attention.forward = make_padded, forward_padded


if __name__ == "__main__":
    from vllm.entrypoints.launchers.api_server.entry import main

    main()
elif "--enforce-eager" in sys.argv:
    _pad_heads()

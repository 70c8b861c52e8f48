"""Stand-in for SGLang's kernel package on a CPU: every name imports, every call raises.

The published package holds GPU code only, but SGLang's CPU engine imports names from it. Dense
models without speculative decoding call none of them: SGLang has torch code for all they need. So
nothing is imitated here, and a model that does need a kernel fails loudly.
"""

__version__ = "0.4.10"


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args, **kwargs):
        raise NotImplementedError(f"sgl_kernel.{name} has no CPU build; serve the model on a GPU")

    missing.__name__ = name
    return missing

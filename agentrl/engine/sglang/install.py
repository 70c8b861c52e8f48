"""Where SGLang comes from.

On a CPU the published packages are enough, without their GPU dependencies and with the stand-ins of
`shims/`.
"""

from pathlib import Path

from agentrl.engine.servers.install import Product

SHIMS = Path(__file__).parent / "shims"
_VERSION = "0.5.23"

SGLANG = Product(
    name="sglang",
    title="SGLang",
    version=_VERSION,
    pip={
        "gpu": [[f"sglang=={_VERSION}"]],
        "cpu": [
            ["torch==2.13.0"],
            # Without dependencies: their versions are those of the GPU build, 6 GB of them.
            ["--no-deps", f"sglang=={_VERSION}", "torchvision==0.28.0"],
            ["-r", str(Path(__file__).parent / "cpu.txt")],
        ],
    },
    num_bytes={"cpu": 4 << 30, "gpu": 20 << 30},
)

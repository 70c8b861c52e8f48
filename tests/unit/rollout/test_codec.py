import shutil
from pathlib import Path

import pytest

from agentrl.errors import ConfigError
from agentrl.rollout import Codec
from agentrl.tokens import Tokenizer

FORGETFUL = """\
{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content if loop.last else message.content[:1] }}<|im_end|>
{% endfor %}<|im_start|>assistant
"""


def test_a_template_that_was_refused_is_refused_again(tiny_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_folder, tmp_path / "model")
    (folder / "chat_template.jinja").write_text(FORGETFUL)
    codec = Codec(Tokenizer.load(folder))
    for _ in range(2):
        with pytest.raises(ConfigError, match="changes earlier text"):
            codec.renderer(())

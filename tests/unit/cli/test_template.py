import json
from pathlib import Path

import pytest

from agentrl.cli.dispatch import main
from agentrl.tokens import time_limit

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ CONTENT }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_a_template_that_only_appends_is_exact(
    tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["template", "check", str(tiny_folder)]) == 0
    shown = capsys.readouterr().out
    assert shown.endswith(
        f"{tiny_folder}, without tools: exact\n{tiny_folder}, with tools: exact\n"
        f"{tiny_folder}, results as user text: exact\n"
    )
    assert "stop tokens: <|im_end|> (2)\n" in shown
    assert "markers stay text" in shown


def test_a_template_that_drops_results_is_refused_with_the_conversation(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "drops.jinja"
    file.write_text(CHATML.replace("CONTENT", "'' if m.role == 'tool' else m.content"))
    argv = ["template", "check", str(file), "--tokenizer", str(tiny_folder)]
    assert main([*argv, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert not report["safe"]
    uses = {use: found["verdict"] for use, found in report["uses"].items()}
    assert uses == {
        "without tools": "exact",
        "with tools": "refused",
        "results as user text": "exact",
    }
    reason = report["uses"]["with tools"]["reason"]
    assert "for system, user, assistant, tool" in reason or "with calls, tool" in reason
    assert "drops or alters 'Result one.'" in reason
    assert main(argv) == 1
    assert "see rollout.tool_results user" in capsys.readouterr().out


def test_a_template_that_rewrites_history_is_kept(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "counts.jinja"
    file.write_text("{{ messages | length }}" + CHATML.replace("CONTENT", "m.content"))
    assert main(["template", "check", str(file), "--tokenizer", str(tiny_folder)]) == 0
    shown = capsys.readouterr().out
    assert (
        "keep    user, assistant, user: for user, assistant, user, the record keeps '2<|im_start|>"
        in shown
    )
    assert "would show '4<|im_start|>" in shown
    assert "prefix-preserving: not always" in shown


def test_a_folder_needs_no_more_than_tokenizer_and_template(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((tiny_folder / name).read_bytes())
    file = tmp_path / "mine.jinja"
    file.write_text(CHATML.replace("CONTENT", "m.content"))
    assert main(["template", "check", str(file), "--tokenizer", str(tmp_path)]) == 0
    file.rename(tmp_path / "chat_template.jinja")
    assert main(["template", "check", str(tmp_path)]) == 0
    assert "with tools: exact" in capsys.readouterr().out


def test_a_template_that_never_ends_is_given_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_limit, "TEMPLATE_LIMIT_S", 0.3)
    file = tmp_path / "long.jinja"
    loops = "".join(f"{{% for {v} in range(99999) %}}" for v in "abc")
    file.write_text(loops + "{% endfor %}" * 3 + CHATML.replace("CONTENT", "m.content"))
    assert main(["template", "check", str(file)]) == 2
    assert "the template did not finish within 0.3 s" in capsys.readouterr().err


def test_a_file_that_is_no_text_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bytes.jinja").write_bytes(b"\xff\xfe{{")
    (tmp_path / "folder.jinja").mkdir()
    for name in ("bytes.jinja", "folder.jinja"):
        assert main(["template", "check", str(tmp_path / name), "--tokenizer", "tiny"]) == 2
        assert f"template file {tmp_path / name} cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "got no TEMPLATE, expected one"),
        (["no/such.jinja"], "template file no/such.jinja does not exist"),
        (["no/such/folder"], "no/such/folder"),
        (["tiny", "--tokenizer", "tiny"], "--tokenizer is for a template file"),
    ],
)
def test_bad_input_is_refused(
    capsys: pytest.CaptureFixture[str], argv: list[str], said: str
) -> None:
    assert main(["template", "check", *argv]) == 2
    assert said in capsys.readouterr().err

"""Why our renderer and parsers differ from others, case by case; `agreement.py` prints them."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Disagreements that have one reason."""

    other: str
    """"renderers" or "sglang"."""
    subjects: tuple[str, ...] = ()
    """Templates or formats; all of them if there is none."""
    cases: tuple[str, ...]
    """What a case's title begins with."""
    right: Literal["ours", "theirs", "choice"]
    why: str

    def is_about(self, other: str, subject: str, case: str) -> bool:
        """True for a disagreement that this explains."""
        about = other == self.other and (not self.subjects or subject in self.subjects)
        return about and case.startswith(self.cases)


KNOWN: tuple[Known, ...] = (
    Known(
        other="renderers",
        cases=(
            "render: control token in",
            "bridge: control token in",
        ),
        right="ours",
        why="The template pastes the text as it is, and they encode it like the rest: a result "
        "that says <|im_end|> ends its own turn. Ours leaves it text, the one place where "
        "the template's ids are not wanted.",
    ),
    Known(
        other="renderers",
        subjects=("qwen3_5_nothink",),
        cases=("render: text", "render: system", "render: call, then user", "render: spaces"),
        right="ours",
        why="The template drops the empty <think></think> of its generation prompt from turns "
        "before the last question; theirs writes it again, so that what was sampled stays. "
        "Ours renders as the template, and keeps what was sampled by appending: there "
        "(bridge) both agree.",
    ),
    Known(
        other="renderers",
        subjects=(
            "qwen3_5_think",
            "qwen3_5_nothink",
            "nemotron_3_nano",
            "nemotron_3_super",
            "nemotron_3_ultra",
            "nemotron_3_5_lightning",
        ),
        cases=("parse: values",),
        right="choice",
        why="The schema has no x and y, and these templates write true and null as True and "
        "None (args_value | string), which is no JSON. They refuse the call that the "
        "template itself wrote, ours gives the two words as text. Qwen 3.6 writes JSON, and "
        "both agree.",
    ),
    Known(
        other="renderers",
        subjects=("llama3_1",),
        cases=("parse: reasoning", "parse: call with reasoning"),
        right="ours",
        why="The template has no place for reasoning, so a demonstration has it in <think> "
        "before the rest. Their parser knows no thinking and loses the call behind it.",
    ),
    Known(
        other="renderers",
        subjects=("deepseekv3",),
        cases=("render: two calls",),
        right="ours",
        why="The template writes a line break before each call but the first ('\\n' + '<tool "
        "call begin>'); theirs writes the later form without it.",
    ),
    Known(
        other="renderers",
        subjects=("deepseekv3",),
        cases=("render: ", "bridge: "),
        right="ours",
        why="Behind results the template opens no thinking: it writes its generation prompt "
        "only if not ns.is_tool. Theirs opens <think> there too.",
    ),
    Known(
        other="sglang",
        subjects=("kimi_k2", "qwen3_coder", "gemma"),
        cases=("bad call: unknown",),
        right="ours",
        why="These three detectors do not look the name up, unlike the other nine; the server "
        "would hand on a call of a tool that the prompt does not list.",
    ),
    Known(
        other="sglang",
        cases=("bad call: missing", "bad call: unexpected", "bad call: not in the enum"),
        right="ours",
        why="The schema in the prompt requires the argument, forbids it or lists its values; "
        "the detectors read no more of a schema than types, so the tool would get it.",
    ),
    Known(
        other="sglang",
        subjects=("qwen3_coder", "minimax_m2"),
        cases=("bad call: text for an integer",),
        right="ours",
        why="02134 is not how an integer is written in JSON; they run the call with 2134.",
    ),
    Known(
        other="sglang",
        cases=("bad call: ",),
        right="ours",
        why="The schema in the prompt says integer or array. They hand on the value as it is "
        "written, as text if it is no JSON, and leave the type to the tool.",
    ),
    Known(
        other="sglang",
        cases=("an argument twice",),
        right="ours",
        why="No template writes a key twice, so which value is meant cannot be told; they take "
        "the second.",
    ),
    Known(
        other="sglang",
        subjects=("llama3_json", "pythonic"),
        cases=("a draft in reasoning",),
        right="ours",
        why="With text in front the detector wants the marker, or one list only. These "
        "templates write calls without a marker, so behind a thinking block the call is "
        "found by its line.",
    ),
    Known(
        other="sglang",
        cases=("a draft in reasoning",),
        right="choice",
        why="Their server cuts reasoning off before, by another parser, if it was started with "
        "one; the detector alone runs the draft. In ours both are one parser.",
    ),
    Known(
        other="sglang",
        subjects=("hermes", "pythonic", "minimax_m2"),
        cases=("cut off",),
        right="ours",
        why="The first call ended before the cut. They match the whole list or block, to its "
        "end mark, and lose it; ours keeps it and says that the second was not closed. "
        "After a stop at the length limit neither would run.",
    ),
    Known(
        other="sglang",
        subjects=("qwen3_coder", "glm", "gemma", "minimax_m2", "atem"),
        cases=("string a marker", "string a call quoted"),
        right="ours",
        why="The template writes a string without escapes, and theirs ends it at the first end "
        "mark, so an altered call runs. Ours asks that the next argument or the call's end "
        "follows, and refuses what Gemma cannot write (a string that holds its own quote "
        "token).",
    ),
    Known(
        other="sglang",
        subjects=("hermes", "deepseek", "kimi_k2", "llama3_json", "harmony"),
        cases=("string a marker", "string a call quoted"),
        right="ours",
        why="In JSON a string may hold any text. They look for the end mark or the tag without "
        "regard to quotes; the JSON is then cut, and the call is lost (Kimi K2: raised).",
    ),
    Known(
        other="sglang",
        subjects=("harmony",),
        cases=("values ", "as models write it 3"),
        right="ours",
        why="They want <|start|>assistant<|channel|>commentary in the text, but the template's "
        "generation prompt already ends with <|start|>assistant, and a recipient may stand "
        "before the channel. A turn of a single call has none.",
    ),
    Known(
        other="sglang",
        subjects=("qwen3_coder", "glm", "minimax_m2", "atem"),
        cases=("string 'null'", "string '{"),
        right="ours",
        why="The schema says string and the templates write strings bare, so null and {...} are "
        "those characters. They read null as None (GLM: as the text None), Muse an object "
        "too.",
    ),
    Known(
        other="sglang",
        subjects=("qwen3_coder",),
        cases=("as models write it 1",),
        right="ours",
        why="The argument may be a string or null, and the template writes a null as None "
        "(args_value | string); they give the text None.",
    ),
    Known(
        other="sglang",
        subjects=("glm", "gemma"),
        cases=("values ", "as models write it 1"),
        right="ours",
        why="The template writes null and 1e-07 bare, and strings between quote tokens (Gemma) "
        "or as they are (GLM); they give the texts null, None and 1e-07.",
    ),
    Known(
        other="sglang",
        subjects=("minimax_m2",),
        cases=('values {"maybe": 3}', 'values {"text"'),
        right="ours",
        why="Where null is one of several types they return None for every value.",
    ),
    Known(
        other="sglang",
        subjects=("qwen3_coder", "minimax_m2"),
        cases=('values {"aa"',),
        right="ours",
        why="The parameter has no type, and the templates write a mapping by tojson; they leave "
        "its JSON as text.",
    ),
    Known(
        other="sglang",
        subjects=("minimax_m2",),
        cases=("string ",),
        right="ours",
        why="The value stands between its tags as it is, without line breaks of the format's "
        "own; they strip those of the text.",
    ),
    Known(
        other="sglang",
        subjects=("pythonic",),
        cases=("values ", "as models write it"),
        right="ours",
        why="-12, a tuple, the words false and null and a line break in a string are no "
        "constants to Python's ast, so the call is dropped; Olmo's <function_calls> is not "
        "known. Templates write all of these. For LFM 2 there is another detector.",
    ),
    Known(
        other="sglang",
        subjects=("llama3_json",),
        cases=("as models write it 3",),
        right="ours",
        why="Behind <|python_tag|> the template writes built-in tools as name.call(key=value); "
        "they read JSON only.",
    ),
    Known(
        other="sglang",
        subjects=("mistral",),
        cases=("as models write it 2",),
        right="ours",
        why="Small 3.2 and Magistral write [CALL_ID] between name and [ARGS]; they do not know it.",
    ),
    Known(
        other="sglang",
        subjects=("deepseek",),
        cases=("as models write it 1",),
        right="choice",
        why="V3 writes a type and a fenced block, V3.1 the bare JSON. They have a detector for "
        "each, ours reads both.",
    ),
    Known(
        other="sglang",
        subjects=("glm",),
        cases=("as models write it 2",),
        right="ours",
        why="GLM 4.7 writes no line break behind the name; this detector asks for one.",
    ),
    Known(
        other="sglang",
        subjects=("gemma",),
        cases=("as models write it 2",),
        right="choice",
        why="FunctionGemma has markers of its own, for which they have no detector.",
    ),
)

from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.envs import MixtureAgent
from agentrl.envs.swe.agents import SearchAgent, edits
from agentrl.types import AssistantTurn, EpisodeView, Message, Task, ToolCall

LINES = st.lists(st.sampled_from(["a", "b", "  c", "", "d = 1"]), max_size=30).map("\n".join)


@settings(max_examples=40)
@given(LINES, LINES)
def test_edits_turn_one_text_into_the_other_each_at_one_place(before: str, after: str) -> None:
    text = before
    if before:
        for edit in edits(before, after):
            assert text.count(edit.old) == 1
            text = text.replace(edit.old, edit.new)
        assert text == after


def test_a_text_that_empties_on_the_way_is_changed_as_a_whole() -> None:
    (edit,) = edits("\nx", "a\n")
    assert (edit.line, edit.old, edit.new) == (1, "\nx", "a\n")


def test_an_edit_has_as_many_lines_as_make_it_unique() -> None:
    (edit,) = edits("a\nx\nb\n" * 2 + "y\nc", "a\nx\nb\n" * 2 + "z\nc")
    assert (edit.line, edit.old, edit.new) == (7, "y", "z")
    (edit,) = edits("a\nx\nb\na\nx\nc", "a\nx\nb\na\nq\nc")
    assert (edit.line, edit.old, edit.new) == (5, "a\nx\nc", "a\nq\nc")


def shown(*messages: Message) -> EpisodeView:
    return EpisodeView(task=Task(prompt="p"), messages=messages)


def test_the_searching_agent_changes_a_line_that_has_the_issues_words() -> None:
    user = Message(role="user", content="`total` with a discount gives too much")
    first = SearchAgent().act(shown(user)).calls[0]
    assert isinstance(first, ToolCall)
    assert "discount" in str(first.arguments["command"])
    found = "./tests/test_a.py:3:discount == total\n./a.py:9:x = 1\n./a.py:12:if total <= discount:"
    said = (user, Message(role="assistant", content=""), Message(role="tool", content=found))
    second = SearchAgent().act(shown(*said)).calls[0]
    assert isinstance(second, ToolCall)
    assert second.arguments["command"] == "sed -i '12s/<=/</' 'a.py'"


class Says:
    def __init__(self, text: str) -> None:
        self.text = text

    def act(self, view: EpisodeView) -> AssistantTurn:
        return AssistantTurn(text=self.text)


def test_a_mixture_draws_by_weight_and_stays_with_what_it_drew() -> None:
    mixture = MixtureAgent({"a": (Says("from a"), 3), "b": (Says("from b"), 1)}, seed=0)
    drawn = [mixture.act(shown(Message(role="user", content="x"))).text for _ in range(200)]
    assert set(drawn) == {"a", "b"}
    assert 130 < drawn.count("a") < 170
    began = (Message(role="user", content="x"), Message(role="assistant", content="b"))
    assert {mixture.act(shown(*began)).text for _ in range(20)} == {"from b"}

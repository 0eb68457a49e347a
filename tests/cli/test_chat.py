"""``--chat``, ``--system`` and ``--messages``: the target's own template, and how answers end."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from draftwire.cli import generation
from draftwire.errors import ExitCode
from tests.cli.conftest import VOCAB, Cli, Pair

# Words of the tiny tokenizer: w2 a system message, w3 a user's, w4 the answer, w5 its end.
TEMPLATE = (
    "{% for m in messages %}{{ {'system': 'w2', 'user': 'w3', 'assistant': 'w4'}[m.role] }} "
    "{{ m.content }} w5 {% endfor %}{% if add_generation_prompt %}w4{% endif %}"
)
MESSAGES = [
    {"role": "user", "content": "w7"},
    {"role": "assistant", "content": "w8"},
    {"role": "user", "content": "w9"},
]


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target with a chat template, whose generation configuration has two end tokens."""
    from testing.harness.tiny_models import save, tiny_llama, tiny_tokenizer

    tokenizer = tiny_tokenizer(VOCAB)
    tokenizer.chat_template = TEMPLATE
    folder = save(tmp_path_factory.mktemp("chat") / "m", tiny_llama(VOCAB, seed=1), tokenizer)
    file = folder / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"eos_token_id": [1, 5]}))
    return folder


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Collect the ids that targets are asked to go on from."""
    asked: list[list[int]] = []
    original = generation.generate

    def noted(target: Any, drafter: Any, prompt: Any, *arguments: Any, **options: Any) -> Any:
        asked.append(list(prompt))
        return original(target, drafter, prompt, *arguments, **options)

    monkeypatch.setattr(generation, "generate", noted)
    return asked


def begin(talker: Path) -> tuple[str, ...]:
    return ("generate", "--target", str(talker), "--threads", "1", "--seed", "3", "--json")


def test_a_prompt_becomes_a_users_message(cli: Cli, talker: Path, prompts: list[list[int]]) -> None:
    """Case M12."""
    start = (*begin(talker), "--max-tokens", "4", "--prompt", "w7 w8")
    assert cli(*start, "--chat").code == ExitCode.OK
    assert cli(*start, "--chat", "--system", "w9").code == ExitCode.OK
    assert cli(*start).code == ExitCode.OK
    assert prompts == [[3, 7, 8, 5, 4], [2, 9, 5, 3, 7, 8, 5, 4], [7, 8]]


def test_a_chat_comes_from_a_file_or_from_standard_input(
    cli: Cli,
    talker: Path,
    prompts: list[list[int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Case M12."""
    file = tmp_path / "chat.json"
    file.write_text(json.dumps(MESSAGES))
    piped = io.TextIOWrapper(io.BytesIO(file.read_bytes()))
    monkeypatch.setattr("sys.stdin", piped)
    for source in (str(file), "-"):
        assert cli(*begin(talker), "--max-tokens", "4", "--messages", source).code == ExitCode.OK
    assert prompts == [[3, 7, 5, 4, 8, 5, 3, 9, 5, 4]] * 2


def test_each_end_token_of_the_generation_configuration_ends_the_answer(
    cli: Cli, talker: Path
) -> None:
    """Case M12: the end of a turn is another token than the end of a document."""
    ends = set()
    for seed in range(12):
        start = (*begin(talker), "--seed", str(seed), "--max-tokens", "60", "--chat")
        found = json.loads(cli(*start, "--prompt", "w7").out)
        if found["report"]["finish"] == "end_token":
            ends.add(found["tokens"][-1])
        assert not {1, 5} & set(found["tokens"][:-1])
    assert ends == {1, 5}


def test_a_target_without_a_template_says_so(cli: Cli, pair: Pair) -> None:
    ran = cli("generate", "--target", str(pair.target), "--prompt", "w3", "--chat")
    assert ran.code == ExitCode.CONFIGURATION and "no chat template" in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--prompt", "x", "--system", "y"), "add --chat"),
        (("--messages", "m.json", "--prompt", "x"), "or --prompt"),
        (("--messages", "m.json", "--chat"), "or --chat"),
        (("--messages", "m.json", "--file", "x", "--system", "y"), "or --file, --system"),
        (("--messages", "/does/not/exist"), "No such file"),
        (("--messages", "/dev/null"), "not JSON"),
        (("--messages", ""), "--messages"),
    ],
)
def test_chats_that_cannot_be_are_usage_errors(
    cli: Cli, arguments: tuple[str, ...], says: str
) -> None:
    ran = cli("generate", *arguments)
    assert ran.code == ExitCode.USAGE and says in ran.err and ran.err.count("\n") == 1

"""Pairs of two vocabularies: what their ids share, and drafting on that under an unchanged law."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from draftwire.drafter.program import DrafterConfig, DrafterProgram
from draftwire.engines.hf import (
    HfDraftEngine,
    HfTargetEngine,
    SharedVocabularyEngine,
    compare_tokenizers,
    load_drafter,
    read_tokenizer,
    require_pair,
)
from draftwire.engines.hf.vocabulary import Spelling, Vocabulary, compare
from draftwire.engines.registry import ServedVocabulary
from draftwire.errors import ConfigurationError, ModelError, PairMismatchError
from draftwire.verifier.generate import generate
from draftwire.verifier.local import LocalDrafter
from draftwire.verifier.report import Report
from draftwire.verifier.sampling import Sampling
from draftwire.wire.messages import ProposalPolicy
from draftwire.wire.registry import Layout
from testing.harness.tiny_models import save, tiny_llama, tiny_tokenizer
from tests.engines.enumerated_laws import ProposalTree, law_of_calls, model_of, own_law
from tests.engines.hook_calls import run
from tests.engines.test_hf_laws import DRAFTER, TARGET

V = 16


def word_tokenizer(words: Sequence[str], **roles: str) -> Any:
    """One token a word, in the order given."""
    tokenizer = Tokenizer(
        models.WordLevel({word: index for index, word in enumerate(words)}, unk_token=words[0])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **roles)


def byte_level(tokens: Sequence[str], merges: Sequence[tuple[str, str]] = ()) -> Any:
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")


def metaspace(tokens: Sequence[str]) -> Any:
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>")


def test_m8_ids_are_compared_by_the_bytes_of_their_text_whatever_wrote_them() -> None:
    target = Vocabulary.of(byte_level(["a", "Ġa", "Ċ", "Ã", "Ã©"]))
    drafter = Vocabulary.of(metaspace(["<unk>", "é", "▁a", "<0x0A>", "<0xC3>", "a", "b"]))
    found = compare(target, drafter)
    # "a", " a", a newline, half a character, the whole of it; and the ends, by their role.
    assert found.shared == {0: 5, 1: 2, 2: 3, 3: 4, 4: 1, 5: 7}
    assert (found.equal, found.different) == (0, 8)
    assert "0 is 'a' in the target, '<unk>' (special) in the drafter" in str(found)
    assert "0 ids mean the same on both sides, 8 do not; 6 of the target's 6" in str(found)


def test_m8_equal_tokenizers_share_all_and_pieces_of_words_are_no_text() -> None:
    same = compare(Vocabulary.of(tiny_tokenizer(V)), Vocabulary.of(tiny_tokenizer(V)))
    assert same.shared == {index: index for index in range(V)}
    assert (same.equal, same.different, same.first) == (V, 0, ())
    words = Vocabulary.of(word_tokenizer(["[UNK]", "a"]))
    assert compare(words, Vocabulary.of(byte_level(["b", "a"]))).shared == {}


def test_an_id_without_a_partner_is_spelt_in_the_drafters_tokens() -> None:
    tokenizer = byte_level(["a", "b", "ab", "Ġ", "c", "Ã"], [("a", "b")])
    target = Vocabulary.of(byte_level(["abc", "Ġab", "Ã©", "z", "abab", "ca"]))
    spelling = Spelling(target, Vocabulary.of(tokenizer), tokenizer)
    assert [spelling(index) for index in range(6)] == [[2, 4], [3, 2], [5], [0], [2, 2], [4, 0]]
    assert spelling(6) == [0] and spelling(1000) == [0]  # special, and no id at all


def moved(order: Sequence[int], renamed: Sequence[int] = ()) -> tuple[Any, Any]:
    """The tiny target with its ids in another order, some under other words, and its tokenizer."""
    model = copy.deepcopy(tiny_llama(V, seed=3))
    at = torch.tensor(order)
    with torch.no_grad():
        for layer in (model.model.embed_tokens, model.lm_head):
            layer.weight.copy_(layer.weight[at].clone())
    words = [f"other{index}" if index in renamed else f"w{index}" for index in order]
    return model, word_tokenizer(words, unk_token="w0", eos_token="w1")


ORDER = [3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10, 15, 12, 13, 14]


def shared_engine(renamed: Sequence[int] = (9, 14), **options: Any) -> Any:
    model, tokenizer = moved(ORDER, renamed)
    engine = HfDraftEngine(model, tokenizer, identity=b"d" * 32, **options)
    return SharedVocabularyEngine.between(engine, tokenizer, tiny_tokenizer(V))


def test_m8_most_ids_in_another_order_are_drafted_on_and_accepted() -> None:
    target = HfTargetEngine(tiny_llama(V, seed=3), tiny_tokenizer(V), identity=b"t" * 32)
    engine = shared_engine()
    assert len(engine.shared) == V - 2
    require_pair(target, engine)
    policy = ProposalPolicy(Layout.SPARSE, 4, 1.0, support=V)
    program = DrafterProgram(engine, DrafterConfig(max_support=V))
    with LocalDrafter(program, target) as drafter:
        known, strange = Report(), Report()
        for seed in range(24):
            sampling = Sampling(seed=seed, max_tokens=8)
            with generate(target, drafter, [3, 7, 2], sampling, policy) as running:
                tokens = [each.token for each in running]
            assert len(tokens) == 8 or tokens[-1] in target.end_tokens
            (strange if {9, 14} & set(tokens) else known).add(running.report)
    # Where all ids are shared, q is p; an id that is not, in the prefix, is only spelt near to it.
    assert known.drafted > 10 and known.accepted > 0.6 * known.drafted
    assert strange.accepted > 0


def test_m8_rows_have_the_partners_logits_and_nothing_elsewhere() -> None:
    engine = shared_engine()
    context = engine.open()
    (row,) = engine.forward([(context, [3, 7, 2])])
    target = tiny_llama(V, seed=3)
    expected = target(input_ids=torch.tensor([[3, 7, 2]])).logits[0, -1].detach()
    known = [index for index in range(V) if index not in (9, 14)]
    torch.testing.assert_close(row[known], expected[known], atol=1e-5, rtol=0)
    assert torch.isneginf(row[[9, 14]]).all()
    engine.truncate(context, 1)
    assert context.length == 1
    (again,) = engine.forward([(context, [7, 2])])
    torch.testing.assert_close(again, row, atol=1e-5, rtol=0)


def test_m8_a_row_has_the_same_bits_in_any_batch() -> None:
    texts = [[3, 7, 2], [9], [14, 9, 5, 1], [6, 6]]
    engine = shared_engine()
    together = engine.forward([(engine.open(), text) for text in texts])
    for text, row in zip(texts, together, strict=True):
        (alone,) = engine.forward([(engine.open(), text)])
        assert torch.equal(alone, row)


def test_a_pass_that_fails_leaves_the_contexts_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = shared_engine(together=False)
    first, second = engine.open(), engine.open()
    engine.forward([(first, [3, 9]), (second, [4])])
    forward, calls = type(first.own).forward, []

    def second_fails(sequence: Any, tokens: Any, keep: int = 1) -> Any:
        calls.append(tokens)
        if len(calls) == 2:
            raise RuntimeError("out of memory")
        return forward(sequence, tokens, keep)

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="out of memory"):
        patch.setattr(type(first.own), "forward", second_fails)
        engine.forward([(first, [5]), (second, [6])])
    assert (first.length, second.length) == (2, 1)
    assert (first.own.length, second.own.length) == (2, 1)


def test_a_text_too_long_for_the_drafters_own_ids_is_drafted_evenly() -> None:
    inner = HfDraftEngine(tiny_llama(V), tiny_tokenizer(V), identity=b"d" * 32)
    engine = SharedVocabularyEngine(
        inner, {2: 2, 5: 5}, V, inner.tokenizer_hash, lambda index: (3, 4, 6, 7)
    )
    context, other = engine.open(), engine.open()
    engine.forward([(context, [9] * 31)])
    assert (context.length, context.own.length) == (31, 124)
    rows = engine.forward([(context, [9, 9]), (other, [2])])
    assert (context.length, context.own.length, other.length) == (33, 124, 1)
    assert rows[0][[2, 5]].tolist() == [0.0, 0.0] and torch.isneginf(rows[0][[0, 9]]).all()
    assert rows[1][2] != rows[1][5]
    engine.truncate(context, 32)
    assert (context.length, context.own.length) == (32, 124)
    engine.truncate(context, 30)
    assert (context.length, context.own.length) == (30, 120)
    (row,) = engine.forward([(context, [2])])
    assert context.own.length == 121 and row[2] != row[5]


def test_m8_nothing_shared_is_refused_in_a_sentence() -> None:
    model, tokenizer = moved(ORDER, range(V))
    bare = word_tokenizer([f"other{index}" for index in range(V)])
    engine = HfDraftEngine(model, tokenizer, identity=b"d" * 32)
    with pytest.raises(ConfigurationError, match="shares no id with the target's tokenizer"):
        SharedVocabularyEngine.between(engine, bare, word_tokenizer(["a", "b"]))


# Of the target's ids 0, 1, 2 the drafter knows 2 and 0, in the other order, and not 1.
TABLES = [
    ("shared", lambda engine: SharedVocabularyEngine.between(engine, OWN, tiny_tokenizer(3))),
    ("a logit fewer", lambda engine: SharedVocabularyEngine(*fewer(engine))),
]
OWN = word_tokenizer(["w2", "other", "w0"], unk_token="w0")


def fewer(engine: HfDraftEngine) -> tuple[Any, ...]:
    """The engine in its own order, its last id without a logit."""
    return (
        engine,
        {0: 0, 1: 1},
        3,
        HfDraftEngine(model_of(DRAFTER), tiny_tokenizer(3), identity=b"d" * 32).tokenizer_hash,
        lambda index: (0,),
    )


@pytest.mark.parametrize(("name", "serve"), TABLES, ids=[name for name, _ in TABLES])
@pytest.mark.parametrize(
    "policy",
    [ProposalPolicy(Layout.DENSE, 2, 1.0), ProposalPolicy(Layout.SPARSE, 2, 1.0, support=2)],
    ids=["dense", "sparse"],
)
def test_m7_m8_the_law_is_that_of_generate_alone(
    monkeypatch: pytest.MonkeyPatch, name: str, serve: Any, policy: ProposalPolicy
) -> None:
    target, prompt, length = model_of(TARGET), [0], 2
    words = ProposalTree()
    own = HfDraftEngine(model_of(DRAFTER), OWN, identity=b"d" * 32)
    program = DrafterProgram(serve(own), DrafterConfig(max_support=3), source=words)
    engine = HfTargetEngine(target, tiny_tokenizer(3), identity=b"t" * 32)
    accepted = 0
    with LocalDrafter(program, engine, audit=False) as local:

        def text() -> tuple[int, ...]:
            nonlocal accepted
            reports: list[Any] = []
            call = {"do_sample": True, "top_k": 0, "max_new_tokens": length, "policy": policy}
            ids = run(target, [prompt], local, reports=reports, **call)
            accepted += reports[0].accepted
            return tuple(ids[0, len(prompt) :].tolist())

        law = law_of_calls(monkeypatch, words, text)
    assert accepted and sum(law.values()) == 1
    assert law == own_law(target, prompt, length, lambda: {"top_k": 0})


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("vocabularies")
    model, tokenizer = moved(ORDER, (9, 14))
    return {
        "narrow": save(root / "narrow", tiny_llama(12, layers=1), tiny_tokenizer(13)),
        "wide": save(root / "wide", tiny_llama(16, layers=1), tiny_tokenizer(13)),
        "moved": save(root / "moved", model, tokenizer),
    }


def test_m7_a_token_without_a_logit_is_never_drafted_on_either_side(
    folders: dict[str, Path],
) -> None:
    narrow, wide = folders["narrow"], folders["wide"]
    for size, target_width in ((12, 12), (13, 16)):
        target = HfTargetEngine(tiny_llama(target_width), tiny_tokenizer(13), identity=bytes(32))
        assert target.vocab_size == size
        for folder in (narrow, wide):
            served = ServedVocabulary(size=target.vocab_size)
            drafter = load_drafter(folder, device="cpu", serve_as=served)
            require_pair(target, drafter)
            (row,) = drafter.forward([(drafter.open(), [3, size - 1])])
            has_logit = size if folder == wide else 12
            assert row.shape == (size,)
            assert torch.isfinite(row[:has_logit]).all() and torch.isneginf(row[has_logit:]).all()
            with LocalDrafter(DrafterProgram(drafter, DrafterConfig(max_support=8)), target) as of:
                policy = ProposalPolicy(Layout.SPARSE, 3, 1.0, support=8)
                sampling = Sampling(seed=5, max_tokens=16)
                with generate(target, of, [3, size - 1], sampling, policy) as running:
                    assert len(list(running)) > 1
                assert running.report.drafted
    # Both sides with one tokenizer and one width need nothing said.
    require_pair(
        HfTargetEngine(tiny_llama(12), tiny_tokenizer(13), identity=bytes(32)),
        load_drafter(narrow, device="cpu"),
    )
    with pytest.raises(ConfigurationError, match="knows 13 ids, so it cannot serve 14"):
        load_drafter(wide, device="cpu", serve_as=ServedVocabulary(size=14))


def test_m8_a_folder_of_tokenizer_files_is_enough(folders: dict[str, Path], tmp_path: Path) -> None:
    tiny_tokenizer(V).save_pretrained(tmp_path)
    tokenizer, size = read_tokenizer(tmp_path, role="target")
    assert size == V
    assert read_tokenizer(folders["narrow"], role="target")[1] == 12
    served = ServedVocabulary(tokenizer, size)
    drafter = load_drafter(folders["moved"], device="cpu", serve_as=served)
    target = HfTargetEngine(tiny_llama(V, seed=3), tiny_tokenizer(V), identity=bytes(32))
    require_pair(target, drafter)
    with pytest.raises(PairMismatchError):
        require_pair(target, load_drafter(folders["moved"], device="cpu"))
    shown = compare_tokenizers((tokenizer, size), read_tokenizer(folders["moved"], role="drafter"))
    assert "14 of the target's 16 have a partner" in shown and "0 is 'w0' (special)" in shown
    with pytest.raises(ModelError, match="is not a folder"):
        read_tokenizer(tmp_path / "none", role="target")

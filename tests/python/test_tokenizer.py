import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import pygpukit as gp
from pygpukit import pull
from support import DATA

pytest.importorskip("tokenizers", reason="pip install tokenizers jinja2")
from pygpukit.llm import chat, tokenizer
from pygpukit.llm.text import StopFilter, TextDecoder


def smollm2():
    path = pull.model_file("smollm2")
    if not path.is_file():
        if os.environ.get("PYGPUKIT_TEST_MODEL_REQUIRED") == "1":
            pytest.fail(f"{path} is not there; run `pygpukit pull smollm2`")
        pytest.skip("SmolLM2 is not here; `pygpukit pull smollm2` fetches it")
    return path


@pytest.fixture(scope="module")
def smollm2_tokenizer():
    path = smollm2()
    return tokenizer.from_gguf(gp.io.gguf(path).metadata, str(path))


def test_smollm2_ids(smollm2_tokenizer):
    reference = json.loads((DATA / "smollm2_tokenizer.json").read_text())
    assert len(reference["strings"]) > 20
    for each in reference["strings"]:
        assert smollm2_tokenizer.encode(each["text"]) == each["ids"], each["text"]


def test_smollm2_round_trip(smollm2_tokenizer):
    for each in json.loads((DATA / "smollm2_tokenizer.json").read_text())["strings"]:
        ids = smollm2_tokenizer.encode(each["text"])
        assert smollm2_tokenizer.decode(ids, skip_special_tokens=False) == each["text"]


def test_smollm2_chat_template(smollm2_tokenizer):
    reference = json.loads((DATA / "smollm2_greedy.json").read_text())
    (chat_text,) = [each for each in reference["prompts"] if each["text"].startswith("<|im_start|>")]
    messages = [{"role": "user", "content": "Explain gravity to a child in two sentences."}]
    text = chat.render(smollm2_tokenizer.chat_template, messages, smollm2_tokenizer.special)
    assert text == chat_text["text"]
    assert smollm2_tokenizer.encode(text, add_special_tokens=False) == chat_text["prompt_ids"]


@pytest.fixture(scope="module")
def tiny():
    folder = DATA / "llama" / "gqa_sharded"
    return tokenizer.from_folder(folder), json.loads((folder / "tokenizer_reference.json").read_text())


def test_tokenizer_json(tiny):
    mine, reference = tiny
    strings = reference["strings"]
    assert strings
    for each in strings:
        assert mine.encode(each["text"]) == each["ids"], each["text"]


def test_texts_are_neither_cut_nor_filled(tiny, tmp_path):
    _, reference = tiny
    folder = tmp_path / "model"
    shutil.copytree(DATA / "llama" / "gqa_sharded", folder)
    settings = json.loads((folder / "tokenizer.json").read_text())
    settings["truncation"] = {
        "direction": "Right",
        "max_length": 2,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    settings["padding"] = {
        "strategy": {"Fixed": 64},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<pad>",
    }
    (folder / "tokenizer.json").write_text(json.dumps(settings))
    kept = tokenizer.from_folder(folder)
    for each in reference["strings"]:
        assert kept.encode(each["text"]) == each["ids"], each["text"]


def test_gguf_gives_the_tokenizer_of_the_folder(tiny):
    mine, reference = tiny
    path = DATA / "gguf" / "tiny_llama.gguf"
    built = tokenizer.from_gguf(gp.io.gguf(path).metadata, str(path))
    strings = reference["strings"]
    for each in strings:
        assert built.encode(each["text"]) == mine.encode(each["text"]), each["text"]
        assert built.decode(each["ids"]) == mine.decode(each["ids"])
    assert built.eos_ids == mine.eos_ids


def metadata(**changes):
    tokens = ["<s>", "</s>", "a", "b", "ab", "\u0120", "\u0120a", "1", "2"]
    base = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": ["a b", "\u0120 a"],
        "tokenizer.ggml.token_type": [3, 3, 1, 1, 1, 1, 1, 1, 1],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
    }
    return {**base, **{f"tokenizer.ggml.{key}": value for key, value in changes.items()}}


def test_what_the_library_panics_at_is_a_bad_file(tmp_path):
    settings = json.loads((DATA / "llama" / "gqa_sharded" / "tokenizer.json").read_text())
    settings["model"]["continuing_subword_prefix"] = "prefix"  # its joins are shorter
    (tmp_path / "tokenizer.json").write_text(json.dumps(settings))
    with pytest.raises(gp.FileFormatError, match=r"tokenizer\.json"):
        tokenizer.from_folder(tmp_path)


def test_special_tokens_around_a_text():
    plain = tokenizer.from_gguf(metadata(), "x")
    assert plain.encode("ab a") == [4, 6]
    both = tokenizer.from_gguf(metadata(add_bos_token=True, add_eos_token=True), "x")
    assert both.encode("ab a") == [0, 4, 6, 1]
    assert both.encode("ab a", add_special_tokens=False) == [4, 6]
    assert both.encode("<s>ab") == [0, 0, 4, 1]
    assert both.decode([0, 4, 6, 1]) == "ab a"
    assert both.decode([0, 4], skip_special_tokens=False) == "<s>ab"
    assert plain.eos_ids == (1,)
    assert plain.special["bos_token"] == "<s>"
    assert plain.token_id("ab") == 4
    assert plain.token_id("nothing") is None
    assert plain.size == 9


@pytest.mark.parametrize("scheme", ["default", "gpt-2", "smollm", "llama-bpe", "qwen2"])
def test_every_scheme_builds(scheme):
    assert tokenizer.from_gguf(metadata(pre=scheme), "x").encode("ab a") == [4, 6]


@pytest.mark.parametrize(
    ("changes", "kind", "part"),
    [
        ({"model": "bert"}, gp.UnsupportedError, "'bert'"),
        ({"model": "t5"}, gp.UnsupportedError, "tokenizer.json"),
        ({"pre": "new-thing"}, gp.UnsupportedError, "'new-thing'"),
        ({"tokens": None}, gp.FileFormatError, "tokens"),
        ({"tokens": [1, 2]}, gp.FileFormatError, "tokens"),
        ({"merges": ["a b c"]}, gp.FileFormatError, "merges"),
        ({"merges": ["a z"]}, gp.FileFormatError, "merges"),
        ({"token_type": [1]}, gp.FileFormatError, "type"),
        ({"token_type": 1}, gp.FileFormatError, "type"),
        ({"pre": ["gpt-2"]}, gp.FileFormatError, "pre"),
    ],
)
def test_bad_metadata(changes, kind, part):
    with pytest.raises(kind, match=part):
        tokenizer.from_gguf(metadata(**changes), "model.gguf")


def test_bad_folders(tmp_path):
    with pytest.raises(gp.FileFormatError, match="tokenizer.json"):
        tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(gp.FileFormatError, match="tokenizer.json"):
        tokenizer.from_folder(tmp_path)
    shutil.copy(DATA / "llama" / "gqa_sharded" / "tokenizer.json", tmp_path)
    config = tmp_path / "tokenizer_config.json"
    config.write_text('{"eos_token": "\\ud800"}')
    with pytest.raises(gp.FileFormatError, match="tokenizer_config.json"):
        tokenizer.from_folder(tmp_path)
    config.write_text('{"chat_template": [{"name": [], "template": "x"}, {"name": "default"}]}')
    assert tokenizer.from_folder(tmp_path).chat_template is None
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(gp.FileFormatError, match="chat_template.jinja"):
        tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    ],
)
@pytest.mark.parametrize("make", [lambda p: p.symlink_to("nothing"), lambda p: p.symlink_to(p), Path.mkdir])
def test_what_is_no_file_is_not_left_out(tmp_path, name, make):
    folder = shutil.copytree(DATA / "llama" / "gqa_sharded", tmp_path / "model")
    (folder / name).unlink(missing_ok=True)
    make(folder / name)
    with pytest.raises(gp.FileFormatError, match=f"{name}: expected a file, got a link to nothing"):
        gp.llm.load(folder)


def test_text_that_cannot_be_read_is_named_once(tmp_path):
    with pytest.raises(gp.FileFormatError, match="expected a readable file"):
        tokenizer.read_text(tmp_path)
    (tmp_path / "config.json").write_bytes(b"\xff")
    with pytest.raises(gp.FileFormatError) as failure:
        tokenizer.read_json(tmp_path / "config.json")
    assert str(failure.value).count("config.json") == 1


def test_ids_that_no_tokenizer_has(tiny):
    for ids in ([-1], [2**32]):
        with pytest.raises(gp.InvalidValueError, match="decode: argument 'ids'"):
            tiny[0].decode(ids)


MESSAGES = [{"role": "user", "content": "Hi <there>"}]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (
            "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m.content }}{% endfor %}",
            "<s>[user] Hi <there>",
        ),
        ("{% if add_generation_prompt %}go{% endif %}", "go"),
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "Hi <there>"}'),
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
        ("{% for m in [1, 2, 3] %}{% if m == 2 %}{% break %}{% endif %}{{ m }}{% endfor %}", "1"),
        ("{{ strftime_now('%Y')|length }}", "4"),
    ],
)
def test_templates(template, expected):
    assert chat.render(template, MESSAGES, {"bos_token": "<s>"}) == expected


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('no system role') }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ cycler.__init__.__globals__ }}",
    ],
)
def test_templates_that_may_not(template):
    with pytest.raises(gp.InvalidValueError, match="chat template"):
        chat.render(template, MESSAGES, {})


@pytest.mark.parametrize(
    ("template", "part"),
    [
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ range(10**9) }}", "OverflowError"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
        ("{{" + "(" * 5000 + "}}", "RecursionError"),
        ("{% break %}", "SyntaxError"),
        ("{% include 'x' %}", "TypeError"),
        ("{{ raise_exception|tojson }}", "TypeError"),
    ],
)
def test_templates_that_fail(template, part):
    with pytest.raises(gp.InvalidValueError, match=f"chat template: {part}"):
        chat.render(template, MESSAGES, {})


@pytest.mark.parametrize("messages", [None, 5, [5], ["a"], {"role": "user"}])
def test_messages_of_a_wrong_kind(messages):
    with pytest.raises(gp.InvalidTypeError, match="messages"):
        chat.render("", messages, {})


def test_templates_with_wrong_syntax():
    with pytest.raises(gp.FileFormatError, match="line 1"):
        chat.render("{% if %}", MESSAGES, {})


def test_pieces_join_to_the_text(tiny):
    mine, _ = tiny
    for text in [
        "plain",
        "na\u00efve \u65e5\u672c\u8a9e \U0001f600 end",
        "a\u0301\u0301",
        " lead",
        "\ufffd x",
        "",
    ]:
        ids = mine.encode(text, add_special_tokens=False)
        decoder = TextDecoder(mine.decode)
        pieces = [decoder.push(token) for token in ids]
        pieces.append(decoder.finish())
        assert "".join(pieces) == mine.decode(ids) == text
        if "\ufffd" not in text:
            assert not any("\ufffd" in piece for piece in pieces)


def test_half_a_character_at_the_end_is_given_as_it_is(tiny):
    mine, _ = tiny
    ids = mine.encode("\U0001f600", add_special_tokens=False)
    assert len(ids) > 1
    decoder = TextDecoder(mine.decode)
    assert [decoder.push(token) for token in ids[:-1]] == [""] * (len(ids) - 1)
    assert decoder.finish() == mine.decode(ids[:-1])


def test_bytes_that_make_no_text_are_decoded_a_few_at_a_time():
    decoded = []

    def decode(ids):
        decoded.append(len(ids))
        return bytes(ids).decode("utf-8", errors="replace")

    for ids in ([0xFF] * 500, [0xFF] * 500 + list("\u20ac uro".encode()), [0xE2] * 300 + [0x82, 0xAC]):
        decoder = TextDecoder(decode)
        pieces = [decoder.push(token) for token in ids]
        pieces.append(decoder.finish())
        assert "".join(pieces) == bytes(ids).decode("utf-8", errors="replace")
    assert max(decoded) < 30
    decoder = TextDecoder(lambda ids: decoded.append(len(ids)) or "")  # special tokens, which are no text
    assert [decoder.push(1) for _ in range(500)] == [""] * 500
    assert max(decoded) < 30


@pytest.mark.parametrize(
    ("pieces", "stops", "expected"),
    [
        (["abc", "def"], [], "abcdef"),
        (["abc", "def"], ["cd"], "ab"),
        (["ab", "c", "d", "ef"], ["bcde"], "a"),
        (["ab", "c", "x"], ["bcde"], "abcx"),
        (["aaa", "ab"], ["aab"], "aa"),
        (["one two"], ["two", "one"], ""),
        (["ends in a hal"], ["half"], "ends in a hal"),
        (["a", "b"], [""], "ab"),
    ],
)
def test_stop_strings(pieces, stops, expected):
    stop = StopFilter(stops)
    given = [stop.push(piece) for piece in pieces]
    assert "".join(given) + stop.finish() == expected
    assert stop.stopped == (expected != "".join(pieces))


def test_padding_of_the_vocabulary_is_never_chosen(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    known = 20
    words = {f"w{i}": i for i in range(known) if i != 7}  # an id that no token has
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    shutil.copytree(DATA / "models" / "qwen3", tmp_path / "model")
    whole = gp.llm.load(tmp_path / "model", dtype="float32")
    backend.save(str(tmp_path / "model" / "tokenizer.json"))
    model = gp.llm.load(tmp_path / "model", dtype="float32")
    assert (whole.config["num_tokens"], model.config["num_tokens"]) == (131, known)
    prompt = [3, 5, 11]
    assert np.array_equal(model.score(prompt).to_numpy(), whole.score(prompt).to_numpy())
    for arguments in ({}, {"temperature": 5.0, "seed": 1}):
        tokens = list(model.stream_tokens(prompt, max_tokens=40, stop_tokens=[], **arguments))
        assert max(tokens) < known
        assert max(whole.stream_tokens(prompt, max_tokens=40, stop_tokens=[], **arguments)) >= known

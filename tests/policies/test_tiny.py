import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentpeft.policies.models.load import load_base
from agentpeft.policies.models.policy_base import compute_fingerprint
from agentpeft.policies.models.tiny import build_tiny, train_tokenizer
from agentpeft.policies.settings.config import ModelSettings, Settings, TinySettings

CORPUS = ["SELECT name FROM pets WHERE age > 30", "Compute 12+34=", "Final Answer: [(2,)]"] * 5
SMALL = TinySettings(hidden_size=32, num_layers=2)
TOKENIZER = train_tokenizer(CORPUS, SMALL)
OF_WORDS = train_tokenizer(CORPUS, SMALL.model_copy(update={"copies_words": True}))
EACH = pytest.mark.parametrize("tokenizer", [TOKENIZER, OF_WORDS], ids=["spanning", "of words"])


@EACH
@settings(max_examples=200, deadline=None)
@given(
    text=st.text(st.characters(exclude_categories=["Cs"])) | st.text("SELECT name>(2,Final Asw:[")
)
def test_tokenizer_is_lossless_on_any_text(tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text


@EACH
def test_every_digit_is_a_token(tokenizer):
    assert [tokenizer.decode([i]) for i in tokenizer.encode("12034")] == list("12034")


def test_set_phrases_cost_few_tokens():
    assert len(TOKENIZER.encode("SELECT name FROM pets WHERE age > 30")) <= 6
    assert len(OF_WORDS.encode("SELECT name FROM pets WHERE age > 30")) <= 10
    assert len(OF_WORDS.encode("Final Answer: [(2")) == 2


@given(
    st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=12),
    *[st.text("(),.'_=\n09", max_size=4) for _ in range(2)],
    st.sampled_from(["", " "]),
)
def test_a_word_is_cut_alike_wherever_it_stands(word, before, after, space):
    alone = OF_WORDS.encode(f"{space}{word}")
    ids = OF_WORDS.encode(f"{before}{space}{word}{after}")
    start = len(OF_WORDS.encode(before))
    assert ids[start : start + len(alone)] == alone


def test_a_control_token_that_is_spelt_out_is_in_no_phrase():
    wide = SMALL.model_copy(update={"copies_words": True})
    tokenizer = train_tokenizer(["dear old friend<|end|>"] * 20, wide)
    assert tokenizer.encode("dear old friend<|end|>")[-1] == tokenizer.eos_token_id


def test_vocabulary_is_bounded():
    many = [f"word{chr(97 + i % 26)}{chr(97 + i // 26 % 26)} " * 3 for i in range(2000)]
    assert len(train_tokenizer(many, SMALL)) == 512


def test_chat_template_is_short():
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
    text = TOKENIZER.apply_chat_template(messages, tokenize=False)
    assert text == "<|user|>hi<|end|><|assistant|>yo<|end|>"
    asked = TOKENIZER.apply_chat_template(messages[:1], tokenize=False, add_generation_prompt=True)
    assert asked == "<|user|>hi<|end|><|assistant|>"


def test_same_seed_gives_the_same_model_and_another_seed_another():
    prints = [compute_fingerprint(build_tiny(SMALL, CORPUS, seed).model) for seed in (0, 0, 1)]
    assert prints[0] == prints[1] != prints[2]


def test_building_leaves_the_global_random_state_alone():
    before = torch.random.get_rng_state()
    build_tiny(SMALL, CORPUS)
    assert torch.equal(before, torch.random.get_rng_state())


def test_default_size_has_one_to_four_million_parameters():
    model = build_tiny(TinySettings(), CORPUS).model
    assert 1e6 < model.num_parameters() < 4e6
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight


def test_an_untrained_model_looks_for_what_came_after_the_last_time():
    model = build_tiny(TinySettings(copies_words=True), CORPUS).model
    model.set_attn_implementation("eager")
    once = torch.randint(4, len(TOKENIZER), (8, 60), generator=torch.manual_seed(0))
    with torch.no_grad():
        first, second, *_ = model(torch.cat([once, once], 1), output_attentions=True).attentions
    again = torch.arange(60, 119)
    assert first[:, 0, again, again - 1].mean() > 0.4
    assert first[:, 1, again, again - 2].mean() > 0.4
    assert second[:, :2, again, again - 59].mean() > 0.04  # of 60 to 119 places


@pytest.mark.parametrize(
    ("width", "num_heads", "inner"), [(32, 2, 88), (64, 2, 176), (128, 4, 344), (192, 4, 512)]
)
def test_heads_and_inner_layers_follow_the_width(width, num_heads, inner):
    tiny = TinySettings(hidden_size=width)
    assert (tiny.num_heads, tiny.intermediate_size) == (num_heads, inner)


def test_saved_model_and_tokenizer_load_as_they_were(tmp_path):
    base = build_tiny(SMALL, CORPUS)
    base.model.save_pretrained(tmp_path)
    base.tokenizer.save_pretrained(tmp_path)
    loaded = load_base(Settings(model=ModelSettings(name=str(tmp_path))))
    text = "e\u0301 12 <|end|>"  # a decomposed letter, which normalisation would change
    assert loaded.tokenizer.encode(text) == base.tokenizer.encode(text)
    assert loaded.tokenizer.decode(loaded.tokenizer.encode(text)) == text
    assert loaded.tokenizer.eos_token_id == base.tokenizer.eos_token_id
    assert compute_fingerprint(AutoModelForCausalLM.from_pretrained(tmp_path)) == (
        compute_fingerprint(base.model)
    )


def test_plain_transformers_reads_the_saved_tokens_alike(tmp_path):
    base = build_tiny(SMALL, CORPUS)
    base.model.save_pretrained(tmp_path)
    base.tokenizer.save_pretrained(tmp_path)
    found = AutoTokenizer.from_pretrained(tmp_path)
    for text in (*CORPUS, " a  b\n\n", "é 12+3=", "SELECT * FROM `pets`;"):
        assert found.encode(text) == base.tokenizer.encode(text)
        assert found.decode(found.encode(text)) == text

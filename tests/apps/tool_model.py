"""Makes `tool-model` in the present folder: a tiny model that has learnt to call one tool.

Run in TRL's environment. It calls `submit` with a digit, and ends when it is answered.
"""

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl.chat_template_utils import qwen2_5_chat_template

from agentpeft.apps.drivers.trl_environment import TrlEnvironment

START, END, PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
ENVIRONMENT = TrlEnvironment("AgentPEFT/Arithmetic-v0", {"num_digits": 1})


def converse(position):
    """Returns a conversation of one call, its digit drawn by the position."""
    call = {"name": "submit", "arguments": {"answer": str(position % 10)}}
    calls = [{"type": "function", "function": call}]
    return [
        {"role": "user", "content": ENVIRONMENT.reset(position)},
        {"role": "assistant", "content": "", "tool_calls": calls},
        {
            "role": "tool",
            "name": "submit",
            "content": ENVIRONMENT.submit(answer=str(position % 10)),
        },
        {"role": "assistant", "content": "Done."},
    ]


def make_tokenizer(texts):
    """Returns a byte-level BPE with the chat template's control tokens; digits stand alone."""
    bpe = Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
    bpe.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=2000, special_tokens=[PAD, START, END], initial_alphabet=alphabet
    )
    bpe.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=END, pad_token=PAD, chat_template=qwen2_5_chat_template
    )


def render(tokenizer, messages, asks=False):
    return tokenizer.apply_chat_template(
        messages, tools=[ENVIRONMENT.submit], tokenize=False, add_generation_prompt=asks
    )


def teach(model, tokenizer, num_steps=150):
    """Takes supervised steps on what follows the prompts, which are all equally long."""
    num_given = len(tokenizer(render(tokenizer, converse(0)[:1], asks=True))["input_ids"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for step in range(num_steps):
        texts = [render(tokenizer, converse(step * 8 + i)) for i in range(8)]
        batch = tokenizer(texts, return_tensors="pt", padding=True)
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        labels[:, :num_given] = -100
        loss = model(**batch, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main():
    torch.manual_seed(0)
    plain = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE()), chat_template=qwen2_5_chat_template
    )
    tokenizer = make_tokenizer(render(plain, converse(position)) for position in range(50))
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=1024,
        tie_word_embeddings=True, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id, bos_token_id=None,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config)
    teach(model, tokenizer)
    model.save_pretrained("tool-model")
    tokenizer.save_pretrained("tool-model")


if __name__ == "__main__":
    main()

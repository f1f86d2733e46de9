"""Names that were settings once, and what to do in their place."""

RETIRED = {
    "training.adam_beta1": "AdamW's is 0.9",
    "training.adam_beta2": "AdamW's is 0.999",
    "training.weight_decay": "AdamW's is 0; training.kl_coeff holds a policy near its start",
    "training.lora_plus_ratio": "A and B learn at training.lr",
    "training.critic_lr": "the critic learns at training.lr",
}
"""By the dotted name, as the end of a sentence."""

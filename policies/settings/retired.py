"""Names that were settings once, and what to do in their place."""

RETIRED = {
    "training.adam_beta1": "AdamW's is 0.9",
    "training.adam_beta2": "AdamW's is 0.999",
    "training.weight_decay": "AdamW's is 0; training.kl_coeff holds a policy near its start",
    "training.lora_plus_ratio": "A and B learn at training.lr",
    "training.critic_lr": "the critic learns at training.lr",
    "training.kl_estimator": "the KL is Schulman's k3, a term of the loss (training.kl_coeff)",
    "training.kl_placement": "the KL is a term of the loss (training.kl_coeff)",
    "training.baseline_momentum": "the moving baseline's is 0.9",
    "training.max_token_mismatch": "training.importance_cap bounds what such tokens weigh",
    "training.max_sequence_mismatch": "training.importance_cap bounds what such episodes weigh",
    "training.vf_loss_coeff": "the value loss weighs 0.5",
    "training.clip_range_vf": "the value loss is the squared error",
    "training.overlong_tokens": "let the environment's reward have a length_cost",
    "training.overlong_buffer_tokens": "let the environment's reward have a length_cost",
    "training.overlong_penalty": "let the environment's reward have a length_cost",
    "training.teacher_model": "write it behind the URL of training.teacher, as http://host/v1#NAME",
    "training.teacher_coeff": "what a teacher says weighs 1",
}
"""By the dotted name, as the end of a sentence."""

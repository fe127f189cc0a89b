"""Text from a trained model, to read: sampled with a fixed seed, the whole prefix run again for every token."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer

from train.model import Decoder
from train.tokens import END_OF_TEXT, END_OF_TURN

PROMPTS = (
    "Once upon a time",
    "Hamlet. ACT VI. SCENE I. The castle.\n\n[Enter HAMLET and the Ghost]\n\nHAMLET\n",
    "ROMEO\nMy love,",
    "The lord of the house said to his servant, ",
    "<|im_start|>user\nWho are you, and whence do you come?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWhat is love?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nTell me, will it rain to-morrow?<|im_end|>\n<|im_start|>assistant\n",
)


@torch.no_grad()
def speak(
    model: Decoder, tokenizer: Tokenizer, prompt: str, *, count: int = 160, temperature: float = 0.8, seed: int = 0
) -> str:
    """The continuation alone. top-p 0.95; ends with the turn or the text."""
    device = model.token_embd.device
    draw = torch.Generator(device).manual_seed(seed)
    ids = tokenizer.encode(prompt, add_special_tokens=False).ids
    ends = {tokenizer.token_to_id(END_OF_TEXT), tokenizer.token_to_id(END_OF_TURN)}
    start = len(ids)
    model.eval()
    for _ in range(count):
        window = torch.tensor([ids[-model.shape.context :]], device=device)
        with (
            torch.compiler.set_stance("force_eager"),
            torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"),
        ):
            logits = model(window)[0, -1].float()
        if temperature == 0:
            best = int(logits.argmax())
        else:
            chances, order = torch.softmax(logits / temperature, -1).sort(descending=True)
            chances[chances.cumsum(0) - chances > 0.95] = 0
            best = int(order[torch.multinomial(chances, 1, generator=draw)])
        if best in ends:
            break
        ids.append(best)
    return str(tokenizer.decode(ids[start:]))

"""The five likeliest next tokens of a text, straight from a tape: python examples/logits.py MODEL "The sky is"."""

import sys

import numpy as np

import shohin
from shohin.devices import Step


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    model, tokenizer = shohin.load(sys.argv[1])
    ids = tokenizer.encode(sys.argv[2])
    pages = np.arange(model.cache.pages).reshape(1, -1)
    step = Step.of(ids, pages=pages, wanted=[len(ids) - 1])
    logits = model.tape("prefill", len(ids), wanted=1).play(step, ["logits"])["logits"][0]
    for i in np.argsort(-logits)[:5]:
        print(f"{logits[i]:8.3f}  {tokenizer.decode([int(i)])!r}")


if __name__ == "__main__":
    main()

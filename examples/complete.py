"""Continue a text: python examples/complete.py MODEL "Once upon a time"."""

import sys

import shohin


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    model, tokenizer = shohin.load(sys.argv[1])
    for response in shohin.stream_generate(model, tokenizer, sys.argv[2], max_tokens=64):
        print(response.text, end="", flush=True)
    print()


if __name__ == "__main__":
    main()

"""``python -m shohin`` is the ``shohin`` command."""

from shohin.serve.cli import main

main()

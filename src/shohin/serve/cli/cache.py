"""``shohin cache``: the files of packed weights that ``--packed-cache`` leaves behind."""

from __future__ import annotations

from dataclasses import asdict

from shohin.errors import BadRequest
from shohin.serve.cli.output import emit, visible
from shohin.serve.packed_folder import KeptFile, kept_files, packed_folder, remove_kept


def list_kept(as_json: bool) -> None:
    """One line a file, or one JSON object."""
    _show("files", kept_files(), as_json)


def remove(names: list[str], everything: bool, as_json: bool) -> None:
    """Remove the named files, or all; BadRequest for neither, for both, and for a name that is not there."""
    if bool(names) == everything:
        raise BadRequest("name the files to remove (shohin cache ls shows them), or give --all", param="name")
    _show("removed", remove_kept([file.name for file in kept_files()] if everything else names), as_json)


def _show(what: str, files: list[KeptFile], as_json: bool) -> None:
    total = sum(file.nbytes for file in files)
    if as_json:
        emit({"folder": str(packed_folder()), what: [asdict(file) for file in files], "bytes": total})
        return
    for file in files:
        print(f"{file.name}  {file.nbytes / 1e6:,.1f} MB  {visible(file.source or file.fault or '')}")
    print(f"{visible(str(packed_folder()))}: {len(files)} {what}, {total / 1e6:,.1f} MB")

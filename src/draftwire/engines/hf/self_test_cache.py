"""Where the figures of a large model's self-test are kept between starts.

A folder ``self-test`` in ``DRAFTWIRE_CACHE_DIR``, or else in ``draftwire`` in ``XDG_CACHE_HOME``
(``~/.cache``). A file that is damaged, or cannot be read or written, is as if it were not there.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import torch
import transformers

_FORMAT: Final = 1  # another one for another test
_LARGEST: Final = 1 << 16  # bytes of a file that is read


def cache_folder() -> Path:
    """Return the folder of the files, which may not be there yet."""
    own = os.environ.get("DRAFTWIRE_CACHE_DIR")
    if own:
        return Path(own).expanduser() / "self-test"
    shared = os.environ.get("XDG_CACHE_HOME")
    base = Path(shared) if shared and Path(shared).is_absolute() else Path("~/.cache").expanduser()
    return base / "draftwire" / "self-test"


def cache_key(model: Any, identity: bytes) -> str:
    """Return the name of a model as it runs here.

    Its checkpoint, configuration, structure, dtypes and device, and the versions of the libraries
    that compute it.
    """
    cuda = model.device.type == "cuda"
    parts = [
        _FORMAT,
        identity.hex(),
        json.dumps(model.config.to_dict(), sort_keys=True, default=str),
        [
            f"{name} {type(each).__module__}.{type(each).__name__}"
            for name, each in model.named_modules()
        ],
        [f"{name} {each.dtype} {tuple(each.shape)}" for name, each in model.named_parameters()],
        [model.device.type, torch.cuda.get_device_name(model.device) if cuda else ""],
        [getattr(model.config, "_attn_implementation", None), torch.get_float32_matmul_precision()],
        [torch.__version__, transformers.__version__],
    ]
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()


def recall(key: str) -> Any:
    """Return what was remembered under a key, or None."""
    try:
        path = cache_folder() / f"{key}.json"
        if path.stat().st_size > _LARGEST:
            return None
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RuntimeError):  # RuntimeError: no home folder
        return None


def remember(key: str, values: Any) -> None:
    """Write values under a key, whole or not at all."""
    with suppress(OSError, RuntimeError):
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=folder, suffix=".part")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                json.dump(values, stream)
            Path(name).replace(folder / f"{key}.json")
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

"""Reading Hugging Face checkpoint directories: safetensors only, no remote code, every fault one line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from trainer.types import InputError

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


def read_config(directory: Path) -> dict[str, Any]:
    """``config.json`` of a causal LM. Raises InputError if it is missing, damaged or names remote code."""
    path = directory / "config.json"
    if not path.is_file():
        raise InputError(f"{path}: missing; give the directory of a Hugging Face causal LM checkpoint")
    config = _read_json(path)
    if "auto_map" in config:
        raise InputError(f"{path}: auto_map asks for remote code, which is never run; "
                         "convert the checkpoint to an architecture of transformers")  # fmt: skip
    if not isinstance(config.get("model_type"), str):
        raise InputError(f"{path}: model_type is missing; give a Hugging Face causal LM checkpoint")
    return config


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files of a checkpoint, one or sharded. Raises InputError where there are none."""
    if (directory / WEIGHTS).is_file():
        return [directory / WEIGHTS]
    index = directory / INDEX
    if index.is_file():
        names = _read_json(index).get("weight_map")
        if not isinstance(names, dict) or not names:
            raise InputError(f"{index}: weight_map is missing; download or save the checkpoint again")
        files = [directory / Path(str(name)).name for name in sorted(set(names.values()))]
        for file in files:
            if not file.is_file():
                raise InputError(f"{file}: missing shard; download or save the checkpoint again")
        return files
    pickles = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in directory.glob(pattern))
    if pickles:
        raise InputError(
            f"{directory / pickles[0]}: pickled weights are never loaded; save the checkpoint as safetensors"
        )
    raise InputError(f"{directory / WEIGHTS}: missing; give a checkpoint with safetensors weights")


def load_weights(directory: Path, views: Mapping[str, Tensor], ignored: frozenset[str] = frozenset()) -> None:
    """Copy a checkpoint's tensors into ``views`` (Hugging Face name to tensor of the expected shape).

    Raises InputError for an unreadable file and for tensors that are missing, unknown (and not
    ``ignored``), of the wrong shape, or not finite.
    """
    missing = set(views)
    for path in weight_files(directory):
        try:
            with safe_open(path, framework="pt") as file, torch.no_grad():
                for name in file.keys():  # noqa: SIM118 (not a dict)
                    if name in ignored or name.endswith("rotary_emb.inv_freq"):
                        continue
                    if name not in views:
                        raise InputError(f"{path}: unexpected tensor {name}; config.json does not fit these weights")
                    tensor = file.get_tensor(name)
                    if tensor.shape != views[name].shape:
                        raise InputError(f"{path}: {name} has shape {list(tensor.shape)}, config.json asks for "
                                         f"{list(views[name].shape)}; use the config of these weights")  # fmt: skip
                    require_finite(path, name, tensor)
                    views[name].copy_(tensor)
                    missing.discard(name)
        except (SafetensorError, OSError) as error:
            raise InputError(f"{path}: unreadable safetensors ({' '.join(str(error).split())}); "
                             "download or save the checkpoint again") from error  # fmt: skip
    if missing:
        raise InputError(f"{directory}: tensor {min(missing)} is missing ({len(missing)} in all); "
                         "config.json does not fit the weights or they are incomplete")  # fmt: skip


def require_finite(path: Path, name: str, tensor: Tensor) -> None:
    """Raise InputError if a weight is NaN or infinite."""
    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        raise InputError(f"{path}: {name} holds NaN or infinite values; go back to an earlier checkpoint")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error}); download or save the checkpoint again") from error
    if not isinstance(value, dict):
        raise InputError(f"{path}: not a JSON object; download or save the checkpoint again")
    return value

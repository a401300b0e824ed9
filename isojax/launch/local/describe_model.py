"""What is in the folder of a language model: `isojax model show`."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

from isojax.core import registry
from isojax.core.config import ModelConfig
from isojax.core.errors import InputError
from isojax.models import safetensors_io
from isojax.models.hf import hf_load
from isojax.tasks.tokenizer import end_tokens, load_tokenizer


def describe_model(folder: Path) -> dict[str, Any]:
    """What is in a model's folder, as plain data; InputError where weights do not fit the config, or it cannot run."""
    model = hf_load.resolve_model(ModelConfig(path=str(folder)))
    stored_tensors = safetensors_io.read_headers(folder)
    family = registry.load("models.families", model.family, "build")
    weights = hf_load.weight_layouts(model, family.build(model, model.vocab))
    hf_load.check_tensors(folder, weights, stored_tensors)
    tensors = [stored_tensors[name] for weight in weights for name in weight.tensor_names]
    description: dict[str, Any] = {
        **model.model_dump(exclude={"path"}),
        "parameters": sum(math.prod(weight.shape) for weight in weights),
        "stored": dict(sorted(Counter(tensor.dtype for tensor in tensors).items())),
        "files": len(safetensors_io.weight_files(folder)),
        "bytes": sum(safetensors_io.DTYPES[tensor.dtype].itemsize * math.prod(tensor.shape) for tensor in tensors),
        "fingerprint": safetensors_io.fingerprint(folder),
        "source": hf_load.read_source(folder),
    }
    try:
        tokenizer = load_tokenizer(folder)
    except InputError as e:  # weights without a tokenizer can be shown; a task in text refuses them by the same words
        return description | {"tokenizer": f"none that can be used: {e}"}
    return description | {
        "tokenizer": f"{len(tokenizer)} tokens",
        "chat_template": tokenizer.chat_template is not None,
        "stop_tokens": {str(tokenizer.convert_ids_to_tokens(i)): i for i in end_tokens(tokenizer, folder)},
    }

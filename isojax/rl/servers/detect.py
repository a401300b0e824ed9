"""Which dialect a server speaks, and which model it serves: by its list of models, which names the
project."""

from dataclasses import dataclass

from isojax.core.errors import InputError
from isojax.rl.servers.dialect import Dialect
from isojax.rl.servers.http_json import JsonClient
from isojax.rl.servers.llama_cpp import LlamaCpp
from isojax.rl.servers.llama_cpp_python import LlamaCppPython
from isojax.rl.servers.openai_completions import OpenAICompletions
from isojax.rl.servers.sglang import SGLang

# By what a project writes into `owned_by`. A server with another name is asked as vLLM is.
DIALECTS: dict[str, type[Dialect]] = {
    "vllm": OpenAICompletions,
    "sglang": SGLang,
    "llamacpp": LlamaCpp,
    "me": LlamaCppPython,
}


@dataclass(frozen=True)
class ServedModel:
    """What answers at a URL."""

    dialect: Dialect
    project: str  # whose server it is, as the server says
    model: str  # the name that it serves the model by


def detect(client: JsonClient) -> ServedModel:
    """Ask a server for its list of models, which tells its project and the model's name.

    Raises InputError where the answer is no such list; ServerFailed where nobody answers.
    """
    answer = client.get("/v1/models")
    try:
        first_model = answer["data"][0]
        model = str(first_model["id"])
        owner = str(first_model.get("owned_by", "openai"))
    except (KeyError, IndexError, TypeError, AttributeError) as e:
        raise InputError(
            where=f"the server {client.options.url}",
            found=f"/v1/models lists no model ({str(answer)[:200]})",
            fix="Is it a server of a language model?",
        ) from e

    if owner not in DIALECTS:
        return ServedModel(OpenAICompletions(), project=owner, model=model)
    dialect = DIALECTS[owner]()
    return ServedModel(dialect, project=dialect.name, model=model)

"""A server at a URL, asked in the dialect that it speaks."""

from isojax.core.errors import ServerFailed
from isojax.rl.servers.detect import detect
from isojax.rl.servers.dialect import Ask, Completion
from isojax.rl.servers.http_json import JsonClient, ServerOptions


class LanguageServer:
    """Threads may share it."""

    def __init__(self, options: ServerOptions) -> None:
        """InputError where it is no server of a language model; ServerFailed where nobody
        answers."""
        self.options = options
        self.client = JsonClient(options)
        self.served = detect(self.client)

    @property
    def name(self) -> str:
        return f"the server {self.options.url} ({self.served.project})"

    def complete(self, ask: Ask) -> list[Completion]:
        """The server's `ask.n` responses to one prompt.

        Raises InputError where the server refuses the request; ServerFailed where it does not
        answer, or not as asked.
        """
        dialect = self.served.dialect
        path, body = dialect.write(self.served.model, ask)
        answer = self.client.post(path, body)
        try:
            completions = dialect.read(answer)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as e:
            raise ServerFailed(
                f"the server {self.options.url} gives an answer that is not as those of "
                f"{self.served.project} ({type(e).__name__}: {e}): {str(answer)[:300]}"
            ) from e

        if len(completions) != ask.n:
            raise ServerFailed(
                f"the server {self.options.url} gives {len(completions)} responses to a request of "
                f"{ask.n}; is it a server of {self.served.project}?"
            )
        return completions

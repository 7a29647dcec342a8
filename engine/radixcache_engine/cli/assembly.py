"""Puts an engine together from a configuration. Importing this loads torch and transformers."""

from dataclasses import dataclass

from radixcache_engine.config import EngineConfig
from radixcache_engine.core.api import EngineAPI
from radixcache_engine.core.build import build_engine
from radixcache_engine.front.front import Front
from radixcache_engine.front.tokenizer import Tokenizer
from radixcache_engine.models.progress import Progress
from radixcache_engine.models.registry import ModelFolder
from radixcache_engine.server.grpc_server import GrpcServer

__all__ = ["Service", "assemble"]


@dataclass(frozen=True, slots=True)
class Service:
    """A loaded model with its engine running, not yet reachable from outside."""

    engine: EngineAPI
    front: Front

    def listen(self, host: str, port: int, *, allow_remote: bool) -> tuple[GrpcServer, int]:
        """Start the gRPC door.

        Returns:
            The running server and the port it listens on (another one where ``port`` is 0).

        Raises:
            AddressError: it cannot listen there.
        """
        server = GrpcServer(
            self.front, self.engine, host=host, port=port, allow_remote=allow_remote
        )
        return server, server.start()


def assemble(config: EngineConfig, folder: ModelFolder, progress: Progress) -> Service:
    """Load the model and start the step loop.

    Raises:
        ModelRefusedError: the model cannot be run exactly.
        ModelLoadError: its files are broken or do not fit the machine.
    """
    tokenizer = Tokenizer.load(folder.path)
    engine = build_engine(config, folder, tokenizer.token_bytes, progress)
    return Service(engine, Front(engine, tokenizer))

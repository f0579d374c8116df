"""RCP over JSON-RPC 2.0, without I/O."""

from gateway.protocol.dispatch import Dispatcher, Emit, Handler, Limits, Server, Snapshot
from gateway.protocol.session import Session, Sessions, State

__all__ = ["Dispatcher", "Emit", "Handler", "Limits", "Server", "Session", "Sessions", "Snapshot", "State"]

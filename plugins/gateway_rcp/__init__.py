"""The engine that is another RCP server: over HTTP, or as a child process over its stdin and stdout."""

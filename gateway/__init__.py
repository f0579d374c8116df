"""rcp-gateway: one Retrieval Context Protocol endpoint in front of many retrieval engines."""

__version__ = "0.1.0"
